//! Questions whose list of known answers goes on in the next message (RFC 6762, 7.2): who answers waits for the rest, and
//! leaves out what is in it. Moments are told as the time since any one moment, always the same.

use crate::message::{DnsMessage, MOST};
use std::net::SocketAddrV4;
use std::time::Duration;

/// How long the rest is waited for, at least; each host waits up to [`SPREAD`] longer, by its own number.
const WAIT: Duration = Duration::from_millis(400);
const SPREAD: Duration = Duration::from_millis(100);
/// Questions that wait at the same time; others are answered as they are.
const MOST_WAITING: usize = 32;

/// Questions that wait for the rest of what is known.
#[derive(Debug)]
pub struct CutQueries {
    wait: Duration,
    waiting: Vec<CutQuery>,
}

#[derive(Debug)]
struct CutQuery {
    from: SocketAddrV4,
    message: DnsMessage,
    until: Duration,
}

impl CutQueries {
    /// None waits yet. `number` tells this host from others, so that they do not answer all at once.
    pub fn new(number: u8) -> Self {
        Self { wait: WAIT + SPREAD * number.into() / u8::MAX.into(), waiting: Vec::new() }
    }

    /// Takes a message; gives what can be answered now.
    pub fn take(
        &mut self,
        from: SocketAddrV4,
        message: DnsMessage,
        now: Duration,
    ) -> Option<DnsMessage> {
        let goes_on = message.cut || message.questions.is_empty();
        if message.response || !goes_on {
            return Some(message);
        }
        if let Some(first) = self.waiting.iter_mut().find(|cut| cut.from == from) {
            if message.cut {
                first.until = now + self.wait;
            }
            first.add(message);
            return None;
        }
        if !message.cut || self.waiting.len() >= MOST_WAITING {
            return Some(message);
        }
        self.waiting.push(CutQuery { from, message, until: now + self.wait });
        None
    }

    /// When the next question is to be answered, if any waits.
    pub fn next(&self) -> Option<Duration> {
        self.waiting.iter().map(|cut| cut.until).min()
    }

    /// A question that has waited long enough, and who asked.
    pub fn due(&mut self, now: Duration) -> Option<(SocketAddrV4, DnsMessage)> {
        let at = self.waiting.iter().position(|cut| cut.until <= now)?;
        let cut = self.waiting.remove(at);
        Some((cut.from, cut.message))
    }
}

impl CutQuery {
    /// What is beyond the most that is looked at of one message is left out.
    fn add(&mut self, more: DnsMessage) {
        let room = |now: &DnsMessage| MOST.saturating_sub(now.questions.len() + now.answers.len());
        let left = room(&self.message);
        self.message.questions.extend(more.questions.into_iter().take(left));
        let left = room(&self.message);
        self.message.answers.extend(more.answers.into_iter().take(left));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ServiceKind;
    use crate::browse::Browse;
    use crate::responder::tests::announcement;

    fn from(port: u16) -> SocketAddrV4 {
        SocketAddrV4::new([10, 0, 0, 2].into(), port)
    }

    fn cut(message: DnsMessage) -> DnsMessage {
        DnsMessage { cut: true, ..message }
    }

    #[test]
    fn what_is_known_by_a_later_message_is_not_told_and_the_rest_is_when_its_time_has_come() {
        let (mut queries, now) = (CutQueries::new(255), Duration::from_secs(7));
        let told = announcement().answer(&Browse::query(0), false).unwrap();
        assert_eq!(told.answers.len(), 2);
        assert_eq!(queries.take(from(5353), cut(Browse::query(0)), now), None);
        let mut known = DnsMessage { answers: told.answers.clone(), ..DnsMessage::default() };
        let kept = known.answers.pop().unwrap();
        let later = now + Duration::from_millis(300);
        assert_eq!(queries.take(from(5353), known.clone(), later), None);
        assert_eq!(queries.next(), Some(now + Duration::from_millis(500)));
        assert_eq!(queries.due(now + Duration::from_millis(499)), None);
        let (who, query) = queries.due(now + Duration::from_millis(500)).unwrap();
        assert_eq!((who, queries.next()), (from(5353), None));
        assert_eq!(announcement().answer(&query, false).unwrap().answers, [kept]);
        // Each message that is cut has the rest waited for anew.
        queries.take(from(5353), cut(Browse::query(0)), now);
        queries.take(from(5353), cut(known), later);
        assert_eq!(queries.next(), Some(later + Duration::from_millis(500)));
    }

    #[test]
    fn others_and_whole_questions_are_answered_at_once() {
        let (mut queries, now) = (CutQueries::new(0), Duration::from_secs(7));
        queries.take(from(5353), cut(Browse::query(0)), now);
        assert_eq!(queries.next(), Some(now + WAIT));
        for port in [5353, 40_000] {
            let asked = queries.take(from(port), Browse::query(3), now);
            assert_eq!(asked.unwrap().questions.len(), ServiceKind::ALL.len());
        }
        let told = announcement().announce();
        assert_eq!(queries.take(from(5353), told.clone(), now), Some(told));
    }

    #[test]
    fn who_floods_takes_a_bounded_room_and_keeps_nobody_from_an_answer() {
        let (mut queries, now) = (CutQueries::new(0), Duration::from_secs(7));
        for port in 1..=MOST_WAITING as u16 {
            assert_eq!(queries.take(from(port), cut(Browse::query(0)), now), None);
        }
        assert!(queries.take(from(5353), cut(Browse::query(0)), now).is_some());
        let much = DnsMessage {
            answers: vec![announcement().announce().answers[0].clone(); MOST],
            ..DnsMessage::default()
        };
        for _ in 0..3 {
            queries.take(from(1), much.clone(), now);
        }
        let (_, query) = queries.due(now + WAIT).unwrap();
        assert_eq!(query.questions.len() + query.answers.len(), MOST);
    }
}
