use super::*;
use crate::file::FileExports;
use std::path::Path;

/// Listeners of a server, none of them open.
fn none() -> Listeners {
    let device = Arc::new(block::Memory::new(4096));
    let exports: Arc<dyn nbd::Exports> = Arc::new(FileExports::new(device, Path::new("f")));
    let (passing, passed) = mpsc::unbounded_channel();
    Listeners {
        server: Server::new(Arc::clone(&exports), nbd::ServerLimits::default()),
        open: Vec::new(),
        closed: false,
        tasks: JoinSet::new(),
        phases: HashMap::new(),
        passing,
        passed,
        returning: Arc::new(Returning::new(exports)),
        attached: watch::channel(true).1,
        carriers: JoinSet::new(),
    }
}

/// A listener whose clients hang until it is told to stop, and which then ends so.
fn hangs(listeners: &mut Listeners, end: impl FnOnce() -> Result<()> + Send + 'static) {
    let (phase, mut phases) = watch::channel(Phase::Serving);
    let passing = listeners.passing.clone();
    let task = listeners.tasks.spawn(async move {
        let _passing = passing;
        let _ = phases.wait_for(|phase| *phase == Phase::Stopping).await;
        end()
    });
    listeners.phases.insert(task.id(), phase);
}

fn cut_off() -> Result<()> {
    Err(Error::unavailable("1 sessions did not end in time and were cut off"))
}

#[tokio::test(start_paused = true)]
async fn clients_that_are_cut_off_in_a_hand_over_do_not_end_the_server() {
    let mut listeners = none();
    hangs(&mut listeners, cut_off);
    assert!(listeners.interrupt(Duration::from_secs(30)).await.is_empty());
    assert!(matches!(listeners.ended().await, Some(Ok(()))));
    assert!(listeners.ended().await.is_none() && listeners.phases.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_panics_does_and_so_does_one_that_fails_untold() {
    let mut listeners = none();
    hangs(&mut listeners, || panic!("on purpose"));
    listeners.interrupt(Duration::from_secs(30)).await;
    let error = listeners.ended().await.unwrap().unwrap_err();
    assert!(error.message().contains("panicked"), "{error}");
    let (phase, _phases) = watch::channel(Phase::Serving);
    let task = listeners.tasks.spawn(async { cut_off() });
    listeners.phases.insert(task.id(), phase);
    assert!(listeners.ended().await.unwrap().is_err());
}
