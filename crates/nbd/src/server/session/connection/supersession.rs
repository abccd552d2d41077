//! What a connection does when its client has attached anew: it settles, shows that it is alive, or
//! drops what it has not answered.
//!
//! It settles when nothing of it is at the device and nothing of it is unread: then no old request can
//! land behind those of the newer connection, which waits until then. An old connection whose peer has
//! hung up takes nothing more, and settles when nothing of it that changes something is at the device: a read that
//! a store holds up keeps nobody waiting. One that is silent may be left over from a broken network, or be one of
//! several that its client uses side by side. It is alive when its client sends more after it got an
//! answer, and then it goes on: requests that a client has under way on two connections have no order.
//! One that gets an answer, or owes the rest of a request, or does not take its answers, and then sends
//! nothing for [`SILENCE`], is dropped with all that was not answered. So is one at once whose place the
//! newer one takes.

use super::{Connection, ConnectionEnd, Receiving};
use crate::server::admission::attachments::SettleRequest;
use crate::server::sockets::stream::Watch;
use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep};

/// How long a connection that has not settled may be silent, while its client waits on a newer one.
const SILENCE: Duration = Duration::from_secs(2);
/// How often it is looked whether the peer has hung up, or sent something that stays unread.
const LOOK: Duration = Duration::from_millis(100);

/// Whether the client still uses a connection after it attached anew.
#[derive(Default)]
pub(super) enum Supersession {
    /// It has not attached anew, or was seen to use both.
    #[default]
    None,
    /// The connection has settled. Should the network bring something of it later, a hang-up is looked
    /// for once more before it is taken.
    Settled,
    /// It is not known yet.
    Open(Box<OpenQuestion>),
}

pub(super) struct OpenQuestion {
    demand: SettleRequest,
    /// Since when the client is silent where it could say something.
    silent: Option<Instant>,
    answered: Option<LastAnswer>,
    look: Pin<Box<Sleep>>,
}

/// What is known of the client's stream since it was sent its last answer.
struct LastAnswer {
    /// Bytes that it had sent before, and that were still in the socket.
    unread: u64,
    /// Something was received since; that may have been sent before the answer.
    received: bool,
    /// All of that was received: what comes now was sent later.
    drained: bool,
}

impl OpenQuestion {
    /// Bytes were received; whether they show that the client is alive.
    fn received(&mut self) -> bool {
        match &mut self.answered {
            Some(answer) => {
                answer.received = true;
                answer.drained
            }
            None => {
                self.silent = None;
                false
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<'_, S> {
    /// Its client has attached anew, and waits until this connection has settled.
    pub(in crate::server) fn ask_to_settle(&mut self, demand: SettleRequest) {
        if demand.is_to_end() {
            if !matches!(self.receiving, Receiving::Closed) {
                self.drop_what_is_left();
            }
            // Nobody is there to take them: neither a full socket nor a store may hold up who takes its place.
            self.drop_answers();
        }
        self.supersession = Supersession::Open(Box::new(OpenQuestion {
            demand,
            silent: None,
            answered: None,
            look: Box::pin(tokio::time::sleep(LOOK)),
        }));
    }

    /// Takes nothing more of a peer that has attached anew and hung up here.
    #[inline]
    pub(super) fn drop_what_a_lost_client_left(&mut self) {
        let looks = match self.supersession {
            Supersession::None => false,
            Supersession::Settled => !self.input.data().is_empty(),
            Supersession::Open(_) => true,
        };
        if looks && !matches!(self.receiving, Receiving::Closed) && self.has_hung_up() {
            self.drop_what_is_left();
        }
    }

    fn has_hung_up(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::has_hung_up)
    }

    fn unread(&self) -> u64 {
        self.watch.as_ref().map_or(0, Watch::unread)
    }

    #[cold]
    fn drop_what_is_left(&mut self) {
        let export = self.engine.export();
        tracing::info!(export, "its client has attached anew: what was not answered is dropped");
        self.close(ConnectionEnd::Replaced);
        // It may not go on elsewhere either.
        self.input.consume(self.input.data().len());
    }

    /// Answers were handed to the system.
    #[inline]
    pub(super) fn note_sent_while_asked(&mut self) {
        match self.supersession {
            Supersession::None => return,
            Supersession::Settled => return self.supersession = Supersession::None,
            Supersession::Open(_) => {}
        }
        let more = self.has_sent_more();
        let unread = self.unread();
        if let Supersession::Open(open) = &mut self.supersession {
            open.answered = Some(LastAnswer { unread, received: false, drained: false });
            open.silent.get_or_insert_with(Instant::now);
        }
        if more {
            self.answer_request_to_settle(Supersession::None);
        }
    }

    /// Whether the client has sent more since its last answer, to stay unread.
    fn has_sent_more(&self) -> bool {
        let Supersession::Open(open) = &self.supersession else { return false };
        open.answered.as_ref().is_some_and(|last| !last.received && self.unread() > last.unread)
    }

    /// Bytes of the client were received.
    #[inline]
    pub(super) fn note_received_while_asked(&mut self) {
        if let Supersession::Open(open) = &mut self.supersession
            && open.received()
        {
            self.answer_request_to_settle(Supersession::None);
        }
    }

    fn answer_request_to_settle(&mut self, now: Supersession) {
        if let Supersession::Open(open) = std::mem::replace(&mut self.supersession, now) {
            open.demand.meet();
        }
    }

    /// Looks whether the connection has settled, and drops what is left of a client that is silent for
    /// too long. Has the task woken to look again.
    #[inline]
    pub(super) fn settle(&mut self, cx: &mut Context<'_>) {
        if matches!(self.supersession, Supersession::Open(_)) {
            self.settle_or_show_alive(cx);
        }
    }

    fn settle_or_show_alive(&mut self, cx: &mut Context<'_>) {
        let in_flight = self.engine.in_flight() > 0;
        let closed = matches!(self.receiving, Receiving::Closed);
        let at_a_request =
            matches!(self.receiving, Receiving::Header) && self.input.data().is_empty();
        let nothing_unread = || at_a_request && self.drained && self.unread() == 0;
        let settled = match closed {
            true => !self.engine.has_changes_in_flight(),
            false => !in_flight && nothing_unread(),
        };
        if settled {
            return self.answer_request_to_settle(Supersession::Settled);
        }
        if self.has_sent_more() {
            return self.answer_request_to_settle(Supersession::None);
        }
        // While the device, its limits or an older connection hold it, the client cannot say anything.
        let owes = self.drained || self.engine.replies.unsent() > 0;
        let may_speak = owes && !in_flight && !self.paced;
        let drained = self.drained;
        let Supersession::Open(open) = &mut self.supersession else { return };
        if let Some(last) = &mut open.answered {
            last.drained |= drained;
        }
        if closed || !(may_speak || open.answered.is_some()) {
            open.silent = None;
        } else if open.silent.get_or_insert_with(Instant::now).elapsed() >= SILENCE {
            self.drop_what_is_left();
            cx.waker().wake_by_ref();
            return;
        }
        while open.look.as_mut().poll(cx).is_ready() {
            open.look.as_mut().reset(Instant::now() + LOOK);
        }
    }
}
