//! The login phase as a state machine (RFC 7143, 6.2 and 12.1). Pure: it is given requests and gives
//! answers; whether a target may be attached is for its caller.

mod parameters;

pub use parameters::{FIRST_BURST, Parameters, RECEIVE};

use crate::chap::{self, Algorithm, CHALLENGE, Secrets};
use crate::codec::request::LoginPdu;
use crate::codec::text;
use std::sync::Arc;

/// All text of one exchange that is held, in bytes.
const LONGEST_TEXT: usize = 64 << 10;
/// Requests of one login at the most.
const MOST_REQUESTS: u32 = 64;

/// The portal group of every address that a server listens at.
pub const PORTAL_GROUP: u16 = 1;

const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;

/// Why a login ends (status class and detail; RFC 7143, 11.13.5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginRefusal {
    /// Class and detail.
    pub status: (u8, u8),
    /// Why, for the log.
    pub why: String,
}

impl LoginRefusal {
    fn new(detail: u8, why: impl Into<String>) -> Self {
        Self { status: (2, detail), why: why.into() }
    }

    fn broken(why: impl Into<String>) -> Self {
        Self::new(0x00, why)
    }

    fn not_authenticated(why: impl Into<String>) -> Self {
        Self::new(0x01, why)
    }

    /// There is no such target, or none for this initiator.
    pub fn not_found(why: impl Into<String>) -> Self {
        Self::new(0x03, why)
    }

    /// The initiator may not use the target.
    pub fn denied(why: impl Into<String>) -> Self {
        Self::new(0x02, why)
    }

    /// The target cannot be used now.
    pub fn unavailable(why: impl Into<String>) -> Self {
        Self { status: (3, 0x01), why: why.into() }
    }

    /// The server has no room.
    pub fn out_of_resources(why: impl Into<String>) -> Self {
        Self { status: (3, 0x02), why: why.into() }
    }
}

/// What the initiator wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionType {
    /// To be told of targets.
    Discovery,
    /// To use the target of this name.
    Normal(String),
}

/// A login that is complete but for attaching the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreed {
    /// What the initiator calls itself.
    pub initiator: String,
    /// Its part of the session's identity.
    pub isid: [u8; 6],
    /// The connection.
    pub cid: u16,
    /// The CHAP user.
    pub user: Option<String>,
    /// What it wants.
    pub session: SessionType,
    /// What was negotiated.
    pub parameters: Parameters,
}

/// What to send as the answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginReply {
    /// The flags of the response.
    pub flags: u8,
    /// Its text.
    pub text: Vec<u8>,
    /// The login is complete, if the target can be attached.
    pub done: bool,
}

/// How far CHAP has come.
#[derive(Debug, PartialEq, Eq)]
enum Proof {
    /// The method is not chosen.
    Nothing,
    /// CHAP was chosen.
    Chosen,
    /// A challenge was sent.
    Challenged(Algorithm),
    /// The initiator proved itself, or need not.
    Given,
}

/// One login.
#[derive(Debug)]
pub struct Login {
    secrets: Option<Arc<Secrets>>,
    challenge: [u8; CHALLENGE],
    id: u8,
    requests: u32,
    stage: Option<u8>,
    tag: u32,
    isid: [u8; 6],
    cid: u16,
    partial: Vec<u8>,
    initiator: Option<String>,
    target: Option<String>,
    discovery: bool,
    told_group: bool,
    proof: Proof,
    user: Option<String>,
    parameters: Parameters,
}

impl Login {
    /// A login that must prove itself by one of `secrets`, if there are any. `random` is what nobody
    /// can guess: the challenge and its number.
    pub fn new(secrets: Option<Arc<Secrets>>, random: [u8; CHALLENGE + 1]) -> Self {
        let mut challenge = [0; CHALLENGE];
        challenge.copy_from_slice(&random[..CHALLENGE]);
        Self {
            secrets,
            challenge,
            id: random[CHALLENGE],
            requests: 0,
            stage: None,
            tag: 0,
            isid: [0; 6],
            cid: 0,
            partial: Vec::new(),
            initiator: None,
            target: None,
            discovery: false,
            told_group: false,
            proof: Proof::Nothing,
            user: None,
            parameters: Parameters::default(),
        }
    }

    /// Takes a request.
    ///
    /// # Errors
    /// A [`LoginRefusal`], with which the login ends.
    pub fn receive(&mut self, request: &LoginPdu, data: &[u8]) -> Result<LoginReply, LoginRefusal> {
        self.requests += 1;
        if self.requests > MOST_REQUESTS {
            return Err(LoginRefusal::broken("a login of too many requests"));
        }
        self.check(request)?;
        if self.partial.len() + data.len() > LONGEST_TEXT {
            return Err(LoginRefusal::broken("a login with more than 64 KiB of text"));
        }
        self.partial.extend_from_slice(data);
        if request.more {
            return Ok(LoginReply { flags: request.stage << 2, text: Vec::new(), done: false });
        }
        let all = std::mem::take(&mut self.partial);
        let pairs = text::parse(&all).map_err(LoginRefusal::broken)?;
        let mut answers = Vec::new();
        let first = self.initiator.is_none();
        if first {
            self.introduce(&pairs)?;
        }
        if request.stage == SECURITY {
            self.prove(&pairs, &mut answers)?;
        } else {
            self.authenticated()?;
            self.parameters.declare(&mut answers);
        }
        for (key, value) in &pairs {
            self.take(request.stage, key, value, &mut answers)?;
        }
        if !self.discovery && !std::mem::replace(&mut self.told_group, true) {
            text::push(&mut answers, "TargetPortalGroupTag", PORTAL_GROUP);
        }
        Ok(self.answer(request, answers))
    }

    /// What was agreed, once an answer said that it is done.
    pub fn agreed(mut self) -> Option<Agreed> {
        self.parameters.settle();
        let session = match (self.discovery, self.target) {
            (true, _) => SessionType::Discovery,
            (false, Some(target)) => SessionType::Normal(target),
            (false, None) => return None,
        };
        Some(Agreed {
            initiator: self.initiator?,
            isid: self.isid,
            cid: self.cid,
            user: self.user,
            session,
            parameters: self.parameters,
        })
    }

    fn check(&mut self, request: &LoginPdu) -> Result<(), LoginRefusal> {
        if request.version != 0 {
            return Err(LoginRefusal::new(0x05, "a version of the protocol that is not 0"));
        }
        let Some(stage) = self.stage else {
            if request.tsih != 0 {
                return Err(LoginRefusal::new(
                    0x0a,
                    "a further connection of a session; each session has one here",
                ));
            }
            if !matches!(request.stage, SECURITY | OPERATIONAL) {
                return Err(LoginRefusal::broken("a login that begins at a stage that is none"));
            }
            (self.stage, self.tag) = (Some(request.stage), request.tag);
            (self.isid, self.cid) = (request.isid, request.cid);
            return self.check_transit(request);
        };
        if request.stage != stage || request.tag != self.tag || request.isid != self.isid {
            return Err(LoginRefusal::broken(
                "a request that does not belong to this login's stage",
            ));
        }
        self.check_transit(request)
    }

    fn check_transit(&self, request: &LoginPdu) -> Result<(), LoginRefusal> {
        if request.transit && request.more {
            return Err(LoginRefusal::broken(
                "a request that goes on and is the last of its stage",
            ));
        }
        let next = request.next;
        if request.transit && !(matches!(next, OPERATIONAL | FULL_FEATURE) && next > request.stage)
        {
            return Err(LoginRefusal::broken("a step to a stage that does not follow"));
        }
        Ok(())
    }

    /// The keys of the first request.
    fn introduce(&mut self, pairs: &[(&str, &str)]) -> Result<(), LoginRefusal> {
        let value = |key: &str| pairs.iter().find(|(name, _)| *name == key).map(|(_, v)| *v);
        let missing = |why| LoginRefusal::new(0x07, why);
        let initiator = value("InitiatorName").ok_or(missing("no InitiatorName"))?;
        if !crate::name::is_initiator(initiator) {
            return Err(LoginRefusal::broken("an initiator name that is none"));
        }
        match value("SessionType") {
            Some("Discovery") => self.discovery = true,
            None | Some("Normal") => {
                let target = value("TargetName").ok_or(missing("no TargetName"))?;
                self.target = Some(target.to_owned());
            }
            Some(_) => return Err(LoginRefusal::new(0x09, "a type of session that is not known")),
        }
        self.initiator = Some(initiator.to_owned());
        Ok(())
    }

    fn authenticated(&self) -> Result<(), LoginRefusal> {
        if self.secrets.is_none() || self.proof == Proof::Given {
            return Ok(());
        }
        Err(LoginRefusal::not_authenticated("it shows no CHAP secret, and one is asked for"))
    }

    /// The security stage: the method, and CHAP.
    fn prove(&mut self, pairs: &[(&str, &str)], answers: &mut Vec<u8>) -> Result<(), LoginRefusal> {
        let value = |key: &str| pairs.iter().find(|(name, _)| *name == key).map(|(_, v)| *v);
        let broken = LoginRefusal::not_authenticated;
        let Some(secrets) = self.secrets.clone() else {
            if let Some(methods) = value("AuthMethod") {
                if !methods.split(',').any(|method| method == "None") {
                    return Err(broken(
                        "it wants to authenticate, and this server has no secrets (--iscsi-chap)",
                    ));
                }
                text::push(answers, "AuthMethod", "None");
            }
            self.proof = Proof::Given;
            return Ok(());
        };
        if let Some(methods) = value("AuthMethod") {
            if self.proof != Proof::Nothing {
                return Err(broken("it chooses a method twice"));
            }
            if !methods.split(',').any(|method| method == "CHAP") {
                return Err(broken("it does not offer CHAP, and a secret is asked for"));
            }
            text::push(answers, "AuthMethod", "CHAP");
            self.proof = Proof::Chosen;
        }
        if let Some(list) = value("CHAP_A") {
            if self.proof != Proof::Chosen {
                return Err(broken("CHAP_A at the wrong time"));
            }
            let algorithm = Algorithm::choose(list)
                .ok_or_else(|| broken("no algorithm for CHAP that is known (5 or 7)"))?;
            text::push(answers, "CHAP_A", algorithm.code());
            text::push(answers, "CHAP_I", self.id);
            text::push(answers, "CHAP_C", text::hex(&self.challenge));
            self.proof = Proof::Challenged(algorithm);
            return Ok(());
        }
        if let Some(answer) = value("CHAP_R") {
            let Proof::Challenged(algorithm) = self.proof else {
                return Err(broken("CHAP_R at the wrong time"));
            };
            let user = value("CHAP_N").ok_or_else(|| broken("CHAP_R without CHAP_N"))?;
            let answer = text::binary(answer, chap::LONGEST)
                .ok_or_else(|| broken("CHAP_R that is no binary data"))?;
            if !secrets.prove(algorithm, user, self.id, &self.challenge, &answer) {
                return Err(broken("wrong CHAP user or secret"));
            }
            if let Some(challenge) = value("CHAP_C") {
                let id =
                    value("CHAP_I").and_then(text::number).and_then(|id| u8::try_from(id).ok());
                let challenge = text::binary(challenge, chap::LONGEST);
                let (Some(id), Some(challenge)) = (id, challenge) else {
                    return Err(broken("CHAP_I or CHAP_C that is none"));
                };
                if challenge == self.challenge {
                    return Err(broken("our own challenge comes back"));
                }
                let (name, secret) = secrets.of_target(user).ok_or_else(|| {
                    broken("it asks the target to prove itself, and there is no secret for that")
                })?;
                let proof = algorithm.answer(id, secret.as_bytes(), &challenge);
                text::push(answers, "CHAP_N", name);
                text::push(answers, "CHAP_R", text::hex(&proof));
            }
            (self.proof, self.user) = (Proof::Given, Some(user.to_owned()));
        }
        Ok(())
    }

    /// Any other key.
    fn take(
        &mut self,
        stage: u8,
        key: &str,
        value: &str,
        answers: &mut Vec<u8>,
    ) -> Result<(), LoginRefusal> {
        match key {
            "InitiatorName" | "InitiatorAlias" | "TargetName" | "SessionType" => return Ok(()),
            "AuthMethod" | "CHAP_A" | "CHAP_N" | "CHAP_R" | "CHAP_I" | "CHAP_C" => {
                if stage == SECURITY {
                    return Ok(());
                }
                return Err(LoginRefusal::broken(format!("{key} outside of the security stage")));
            }
            _ => {}
        }
        let known = self.parameters.offer(key, value, answers);
        if !known.map_err(|why| LoginRefusal::broken(format!("{key}: {why}")))? && !is_answer(value)
        {
            let key: String = key.chars().take(63).collect();
            text::push(answers, &key, "NotUnderstood");
        }
        Ok(())
    }

    fn answer(&mut self, request: &LoginPdu, text: Vec<u8>) -> LoginReply {
        let stay = LoginReply { flags: request.stage << 2, text, done: false };
        let ready = request.stage != SECURITY || self.authenticated().is_ok();
        if !request.transit || !ready {
            return stay;
        }
        self.stage = Some(request.next);
        let flags = 0x80 | request.stage << 2 | request.next;
        LoginReply { flags, done: request.next == FULL_FEATURE, ..stay }
    }
}

/// Whether this says how something of ours was taken, and is answered by nothing.
fn is_answer(value: &str) -> bool {
    matches!(value, "NotUnderstood" | "Irrelevant" | "Reject")
}

#[cfg(test)]
mod tests;
