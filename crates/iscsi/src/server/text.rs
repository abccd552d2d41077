//! Text requests within a session: discovery, and answers in several pieces.

use crate::codec::request::Simple;
use crate::codec::{NO_TAG, text};
use crate::login::{PORTAL_GROUP, Parameters};
use crate::name;
use crate::targets::{Initiator, Targets};
use std::net::SocketAddr;

/// The longest list of targets, in bytes.
const LONGEST: usize = 16 << 20;

/// What a session answers to text requests.
pub(super) struct Answers {
    client: Initiator,
    /// Where the initiator reached this server.
    local: SocketAddr,
    /// The target of the session.
    target: Option<String>,
    /// An answer, and how much of it was sent.
    whole: Vec<u8>,
    sent: usize,
    next: u32,
}

impl Answers {
    pub(super) fn new(client: Initiator, local: SocketAddr, target: Option<String>) -> Self {
        let local = SocketAddr::new(local.ip().to_canonical(), local.port());
        Self { client, local, target, whole: Vec::new(), sent: 0, next: 0 }
    }

    /// The answer to a request: its text, and a tag when there is more.
    ///
    /// # Errors
    /// What is wrong with the request.
    pub(super) async fn answer(
        &mut self,
        request: &Simple,
        data: &[u8],
        targets: &dyn Targets,
        agreed: &mut Parameters,
    ) -> Result<(Option<u32>, Vec<u8>), &'static str> {
        let goes_on = request.transfer != NO_TAG;
        if goes_on && (self.whole.is_empty() || request.transfer != self.next || !data.is_empty()) {
            return Err("it goes on with a text that there is not");
        }
        if !goes_on {
            if request.flags & 0x40 != 0 {
                return Err("a text in several pieces");
            }
            (self.whole, self.sent) = (self.compose(data, targets, agreed).await?, 0);
        }
        let rest = &self.whole[self.sent..];
        let piece = rest[..rest.len().min(agreed.initiator_segment as usize)].to_vec();
        self.sent += piece.len();
        if self.sent == self.whole.len() {
            (self.whole, self.sent) = (Vec::new(), 0);
        }
        self.next = (self.next + 1) % NO_TAG;
        Ok(((!self.whole.is_empty()).then_some(self.next), piece))
    }

    async fn compose(
        &self,
        data: &[u8],
        targets: &dyn Targets,
        agreed: &mut Parameters,
    ) -> Result<Vec<u8>, &'static str> {
        let (mut answers, mut listed) = (Vec::new(), false);
        for (key, value) in text::parse(data)? {
            match key {
                "SendTargets" if std::mem::replace(&mut listed, true) => {
                    return Err("it asks for targets twice");
                }
                "SendTargets" => self.targets(value, targets, &mut answers).await?,
                // The other keys were settled by the login.
                "MaxRecvDataSegmentLength" => {
                    agreed.offer(key, value, &mut answers)?;
                }
                _ => text::push(&mut answers, key, "NotUnderstood"),
            }
        }
        Ok(answers)
    }

    /// The targets that the initiator may use, or the one that it asks for.
    async fn targets(
        &self,
        wanted: &str,
        targets: &dyn Targets,
        answers: &mut Vec<u8>,
    ) -> Result<(), &'static str> {
        let own = self.target.as_deref();
        let wanted = match (wanted, own) {
            ("All", None) => None,
            ("All", Some(_)) => return Err("all targets are for a discovery session"),
            ("", None) => return Err("no target is named"),
            ("", Some(own)) => Some(own),
            (name, _) => Some(name),
        };
        let exports = targets.list(&self.client).await.map_err(|error| {
            tracing::warn!(%error, "targets cannot be listed");
            "the targets cannot be listed"
        })?;
        for target in exports.iter().filter_map(|export| name::of_export(export)) {
            if wanted.is_some_and(|wanted| !wanted.eq_ignore_ascii_case(&target)) {
                continue;
            }
            if answers.len() > LONGEST {
                break;
            }
            text::push(answers, "TargetName", &target);
            text::push(answers, "TargetAddress", format_args!("{},{PORTAL_GROUP}", self.local));
        }
        Ok(())
    }
}
