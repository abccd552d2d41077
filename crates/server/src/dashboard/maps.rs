//! Chunk maps of disks. Whoever watches one asks once a second; it is drawn again at most so often, one map at a
//! time, and once for all who watch it. While nobody asks, nothing is drawn.

use super::kept::{KeptAnswer, ReadingTerms};
use super::lists::json;
use crate::running::RunningServer;
use block::{Error, Result};
use bytes::Bytes;
use engine::api::{DiskReply, DiskRequest};
use engine::verbs;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A map is drawn no more often than this.
const LEAST: Duration = Duration::from_secs(1);
/// One part in so many of the time goes to all maps that are watched.
const PARTS: u32 = 100;
/// A map that nobody has asked for since is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// How many are kept.
const MOST: usize = 64;

/// The maps that are watched.
#[derive(Debug, Default)]
pub(super) struct Maps {
    watched: Mutex<BTreeMap<(String, usize), WatchedMap>>,
    /// One is drawn at a time.
    drawing: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct WatchedMap {
    asked: Instant,
    answer: Arc<KeptAnswer>,
}

impl Maps {
    /// The map of a disk in so many cells at the most, [`MapView`](engine::api::MapView) as JSON.
    ///
    /// # Errors
    /// Any error from [`DiskRequest::Map`].
    pub(super) async fn get(
        &self,
        running: &RunningServer,
        name: String,
        cells: usize,
    ) -> Result<Bytes> {
        let (answer, watched) = self.answer(&name, cells);
        let terms = ReadingTerms { least: LEAST, parts: PARTS.saturating_mul(watched) };
        let draw = async |_| {
            let _turn = self.drawing.lock().await;
            match verbs::perform(&running.engine, DiskRequest::Map { name, cells }).await? {
                DiskReply::Map(map) => Ok((json(&map)?, map.work)),
                _ => Err(Error::internal("a map of a disk is no map")),
            }
        };
        answer.get(running.changes(), terms, draw).await
    }

    /// Where the answer is kept, and how many are. Beyond the most it is kept for those alone who ask at this
    /// moment.
    fn answer(&self, name: &str, cells: usize) -> (Arc<KeptAnswer>, u32) {
        let mut watched = self.watched.lock();
        watched.retain(|_, one| one.asked.elapsed() < FORGOTTEN);
        let asked = Instant::now();
        let key = (name.to_owned(), cells);
        let answer = match watched.get_mut(&key) {
            Some(one) => {
                one.asked = asked;
                Arc::clone(&one.answer)
            }
            None => {
                let answer = Arc::<KeptAnswer>::default();
                if watched.len() < MOST {
                    watched.insert(key, WatchedMap { asked, answer: Arc::clone(&answer) });
                }
                answer
            }
        };
        (answer, watched.len() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_nobody_asks_for_any_more_is_forgotten_and_few_are_kept() {
        let maps = Maps::default();
        for number in 0..10 * MOST {
            maps.answer(&number.to_string(), 64);
        }
        assert_eq!(maps.watched.lock().len(), MOST);
        let (first, _) = maps.answer("0", 64);
        assert!(Arc::ptr_eq(&first, &maps.answer("0", 64).0));
        assert!(!Arc::ptr_eq(&first, &maps.answer("0", 65).0), "of another size");
        tokio::time::sleep(FORGOTTEN / 2).await;
        maps.answer("0", 64);
        tokio::time::sleep(FORGOTTEN / 2).await;
        let (again, watched) = maps.answer("0", 64);
        assert!(Arc::ptr_eq(&first, &again));
        assert_eq!(watched, 1);
    }
}
