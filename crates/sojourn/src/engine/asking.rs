//! Asking about many things, so that those that are slow to answer hold up as few others as can be.

use block::Result;
use std::time::Duration;
use tokio::task::JoinSet;

/// Asked about at the same time.
const MOST: usize = 16;

/// What came of one question.
#[derive(Debug)]
pub(crate) enum Answer {
    Good,
    Bad(block::Error),
    /// None in time.
    Late,
}

/// Does `ask` with each of `all`, some at a time and in this order, none for longer than `patience`;
/// tells `hear` what came of it. Nothing goes on when the future is dropped.
pub(crate) async fn ask_all<T: Clone + Send + 'static, F>(
    all: impl IntoIterator<Item = T>,
    patience: Duration,
    ask: impl Fn(T) -> F,
    mut hear: impl FnMut(T, Answer),
) where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let mut asked = JoinSet::new();
    let mut all = all.into_iter();
    loop {
        while asked.len() < MOST
            && let Some(one) = all.next()
        {
            let answer = tokio::time::timeout(patience, ask(one.clone()));
            asked.spawn(async move {
                let answer = match answer.await {
                    Ok(Ok(())) => Answer::Good,
                    Ok(Err(e)) => Answer::Bad(e),
                    Err(_) => Answer::Late,
                };
                (one, answer)
            });
        }
        match asked.join_next().await {
            Some(Ok((one, answer))) => hear(one, answer),
            // A fault of the program, which has told about itself.
            Some(Err(_)) => {}
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Error;
    use tokio::time::Instant;

    const PATIENCE: Duration = Duration::from_secs(5);

    /// Asks about so many of which those that `is_silent` never answer; who was late, and how long
    /// all of it took.
    async fn late(count: usize, is_silent: fn(usize) -> bool) -> (Vec<usize>, Duration) {
        let began = Instant::now();
        let (mut late, mut heard) = (Vec::new(), 0);
        let ask = |one: usize| async move {
            if is_silent(one) {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            if one == 1 { Err(Error::fenced("taken")) } else { Ok(()) }
        };
        let hear = |one, answer| {
            heard += 1;
            match answer {
                Answer::Good => {}
                Answer::Bad(_) => assert_eq!(one, 1),
                Answer::Late => late.push(one),
            }
        };
        ask_all(0..count, PATIENCE, ask, hear).await;
        assert_eq!(heard, count);
        (late, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_never_answers_holds_up_no_other() {
        let (who, took) = late(1000, |one| one == 3).await;
        assert_eq!(who, [3]);
        assert!(took >= PATIENCE && took < PATIENCE * 2, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_never_answers_is_given_up_for_each_in_turn() {
        let (who, took) = late(40, |_| true).await;
        assert_eq!((who.len(), took), (40, PATIENCE * 3), "sixteen at a time");
    }
}
