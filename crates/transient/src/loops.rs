//! What loop devices stand on, asked so that nobody waits for ever: a file system on FUSE or behind a network may not
//! answer, and the kernel asks it whenever a loop device is asked for its file.
//!
//! A process of its own asks ([`sys::apart`]), one for each device at a time, however long that takes; whoever wants to
//! know waits for a while.

use crate::identity::DiskIdentity;
use crate::machine::KernelDisk;
use crate::sys;
use parking_lot::{Condvar, Mutex};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// For how long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is to be asked, ready for one who may not allocate.
#[derive(Debug, Clone)]
struct Question {
    /// The node of the loop device.
    node: CString,
    /// Where its file was when it was attached.
    file: CString,
    /// Whether bytes are read, too.
    reads: bool,
}

/// What was answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoopAnswer {
    /// What the kernel says that it stands on; `None` when it is not attached.
    pub(crate) ground: Result<Option<DiskIdentity>, Errno>,
    /// What is there now where its file was when it was attached, for those who need it.
    pub(crate) named: Result<DiskIdentity, Errno>,
}

/// Blocks of a disk that is read past the page cache.
#[repr(C, align(4096))]
struct AlignedPage([u8; 4096]);

impl Question {
    /// Asks. Makes system calls, and nothing else.
    fn ask(&self) -> LoopAnswer {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let ground = rustix::fs::open(&self.node, flags, Mode::empty())
            .and_then(|device| sys::loop_backing(&device));
        let named = match ground {
            Ok(_) if !self.reads => Err(Errno::NOENT),
            _ => rustix::fs::statat(CWD, &self.file, rustix::fs::AtFlags::empty())
                .map(|found| DiskIdentity::of_stat(&found)),
        };
        if self.reads && ground.is_ok() {
            let mut page = AlignedPage([0; 4096]);
            // What is read does not matter, nor whether it can be: that is for others to say.
            if let Ok(device) = rustix::fs::open(&self.node, flags | OFlags::DIRECT, Mode::empty())
            {
                let _ = rustix::io::pread(&device, &mut page.0, 0);
            }
        }
        LoopAnswer { ground, named }
    }
}

/// A question that was asked.
#[derive(Debug, Default)]
struct Asked {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Clone, Copy, Default)]
enum State {
    #[default]
    New,
    /// Somebody waited in vain.
    Late,
    /// There is an answer, unless nobody could ask.
    Done(Option<LoopAnswer>),
}

/// The number of a device, and whether bytes are read.
type Subject = (u64, bool);

/// Questions without an answer: whoever asks in vain must not ask once more each time. They are the kernel's, and
/// outlive those who asked.
static UNANSWERED: Mutex<BTreeMap<Subject, Arc<Asked>>> = Mutex::new(BTreeMap::new());

impl Asked {
    /// Waits for the answer, once: whoever comes later does not wait again.
    fn wait(&self) -> State {
        let mut state = self.state.lock();
        if matches!(*state, State::New) {
            let new = |state: &mut State| matches!(state, State::New);
            if self.changed.wait_while_for(&mut state, new, PATIENCE).timed_out() {
                *state = State::Late;
            }
        }
        *state
    }

    fn done(&self, subject: Subject, answer: Option<LoopAnswer>) {
        UNANSWERED.lock().remove(&subject);
        *self.state.lock() = State::Done(answer);
        self.changed.notify_all();
    }
}

/// Has the question answered in the background.
fn ask_behind(asked: &Arc<Asked>, subject: Subject, question: Question) {
    let theirs = Arc::clone(asked);
    let thread = std::thread::Builder::new().name("loop device".to_owned()).spawn(move || {
        let mut answer = None;
        let apart = sys::apart(&mut || answer = Some(question.ask()));
        theirs.done(subject, answer.filter(|_| apart.is_ok()));
    });
    if thread.is_err() {
        asked.done(subject, None);
    }
}

/// What the loop device `device` stands on; `file` is where that was when it was attached. `None` when that cannot be
/// told in time. With `reads`, it must also answer a read.
pub(crate) fn ask(device: &KernelDisk, file: &Path, reads: bool) -> Option<LoopAnswer> {
    let subject = (device.device()?, reads);
    let node = CString::new(device.path.as_os_str().as_bytes()).ok()?;
    let question = Question { node, file: CString::new(file.as_os_str().as_bytes()).ok()?, reads };
    loop {
        let (asked, is_ours) = {
            let mut unanswered = UNANSWERED.lock();
            let is_ours = !unanswered.contains_key(&subject);
            (Arc::clone(unanswered.entry(subject).or_default()), is_ours)
        };
        if is_ours {
            ask_behind(&asked, subject, question.clone());
        }
        match asked.wait() {
            State::Done(answer) if is_ours => return answer,
            // The device may have been attached to another file since somebody else asked.
            State::Done(_) => {}
            State::New | State::Late => return None,
        }
    }
}

/// What the loop devices that were asked stand on, with the number of their attachment.
static KNOWN: Mutex<BTreeMap<u64, (u64, PathBuf, DiskIdentity)>> = Mutex::new(BTreeMap::new());

/// What [`ask`] says, from memory as long as the device is attached to the same file: that file need not answer once
/// more.
pub(crate) fn ask_once(device: &KernelDisk, file: &Path) -> Option<LoopAnswer> {
    let number = device.device()?;
    // Since Linux 5.15.
    let Some(attached) = device.attachment() else { return ask(device, file, false) };
    let known = KNOWN.lock().get(&number).cloned();
    if let Some((then, path, ground)) = known
        && then == attached
        && path == file
    {
        return Some(LoopAnswer { ground: Ok(Some(ground)), named: Err(Errno::NOENT) });
    }
    let answer = ask(device, file, false)?;
    if let Ok(Some(ground)) = answer.ground
        && device.attachment() == Some(attached)
    {
        KNOWN.lock().insert(number, (attached, file.to_owned(), ground));
    }
    Some(answer)
}
