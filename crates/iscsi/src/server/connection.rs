//! One connection from its login to its end.

use super::input::PduBuffer;
use super::places::ClientPlace;
use super::registry::{RegisteredSession, SessionKey, SessionOrder};
use super::session::{FullFeatureSession, Phase, SessionEnd, WINDOW};
use super::{Counted, Inner};
use crate::chap::CHALLENGE;
use crate::codec::response::{self, Counts, Output};
use crate::codec::{Digests, PduCut, RequestPdu, cut};
use crate::login::{Agreed, Login, LoginRefusal, SessionType};
use crate::name;
use crate::scsi::{Nexus, Unit};
use crate::targets::{Attachment, Initiator, SessionEnding};
use block::{Error, ErrorKind, Result};
use nbd::server::ConnectedSocket;
use rustix::net::sockopt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;

/// The longest data segment of a login request, in bytes: that of every connection before it is
/// negotiated.
const LOGIN_SEGMENT: usize = 8192;

/// A login on its way, with the numbers that its answers carry.
struct Answering {
    tag: u32,
    isid: [u8; 6],
    counts: Counts,
}

impl Answering {
    async fn send(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        flags: u8,
        tsih: u16,
        status: (u8, u8),
        text: &[u8],
    ) -> Result<()> {
        let mut output = Output::new(Digests::default());
        output.put(response::login(flags, self.isid, tsih, self.tag, status, self.counts), text);
        self.counts.stat_sn = self.counts.stat_sn.wrapping_add(1);
        stream.write_all(output.unsent()).await.map_err(|e| Error::io("the connection", e))
    }
}

/// Serves an initiator.
///
/// # Errors
/// Why the connection ended, unless the initiator ended it.
pub(super) async fn serve(
    inner: &Arc<Inner>,
    mut stream: TcpStream,
    peer: SocketAddr,
    stop: watch::Receiver<SessionOrder>,
) -> Result<()> {
    prepare(inner, &stream).map_err(|e| Error::io("the connection", e))?;
    let mut input = PduBuffer::new();
    let deadline = Instant::now() + inner.limits.login_deadline;
    let late = || Error::unavailable("the login took too long");
    let mut answering = Answering { tag: 0, isid: [0; 6], counts: Counts::default() };
    let logged_in = {
        let mut stopped = stop.clone();
        let place = inner.logins.enter(peer.ip().to_canonical());
        let login = log_in(inner, &mut stream, &mut input, &mut answering);
        tokio::select! {
            biased;
            _ = stopped.wait_for(|order| *order != SessionOrder::Go) => return Ok(()),
            () = place.lost() => {
                inner.counts.refused.fetch_add(1, Relaxed);
                return Err(Error::unavailable("too many connections were in their login"));
            }
            done = tokio::time::timeout_at(deadline, login) => done.map_err(|_| late())?,
        }
    };
    let (agreed, flags, text) = match logged_in? {
        Ok(done) => done,
        Err(refusal) => return refuse(inner, &mut stream, &mut answering, peer, refusal).await,
    };
    let client = Initiator {
        address: SocketAddr::new(peer.ip().to_canonical(), peer.port()),
        initiator: agreed.initiator.clone(),
        user: agreed.user.clone(),
    };
    let local = stream.local_addr().map_err(|e| Error::io("the connection", e))?;
    let stream = stream_of(stream)?;
    let session = agreed.session.clone();
    let login = FinishedLogin {
        inner,
        stream,
        input,
        answering,
        agreed,
        last: (flags, text),
        client,
        local,
        deadline,
        stop,
    };
    match session {
        SessionType::Discovery => login.discover().await,
        SessionType::Normal(target) => login.use_target(&target).await,
    }
}

/// A login of which only the last answer is still to be given.
struct FinishedLogin<'a> {
    inner: &'a Arc<Inner>,
    stream: ConnectedSocket,
    input: PduBuffer,
    answering: Answering,
    agreed: Agreed,
    /// The flags and the text of the last answer.
    last: (u8, Vec<u8>),
    client: Initiator,
    local: SocketAddr,
    deadline: Instant,
    stop: watch::Receiver<SessionOrder>,
}

impl<'a> FinishedLogin<'a> {
    /// Lets the initiator in.
    async fn answer(&mut self) -> Result<()> {
        let (flags, text) = &self.last;
        let handle = self.inner.registry.handle();
        self.answering.send(&mut self.stream, *flags, handle, (0, 0), text).await
    }

    async fn refuse(mut self, refusal: LoginRefusal) -> Result<()> {
        let peer = self.client.address;
        refuse(self.inner, &mut self.stream, &mut self.answering, peer, refusal).await
    }

    /// A session that is told of targets.
    async fn discover(mut self) -> Result<()> {
        let _seat = match self.inner.places.take(self.client.identity()) {
            Ok(seat) => seat,
            Err(why) => return self.refuse(LoginRefusal::out_of_resources(why)).await,
        };
        self.answer().await?;
        let counts = self.answering.counts;
        let Self { inner, mut stream, mut input, agreed, client, local, stop, .. } = self;
        let phase = Phase::Discovery;
        let mut session = FullFeatureSession::new(inner, &agreed, client, local, counts, phase);
        session.run(&mut stream, &mut input, stop, None).await.map(drop)
    }

    /// A session that uses a target.
    async fn use_target(mut self, target: &str) -> Result<()> {
        let Some(export) = name::to_export(target) else {
            return self.refuse(LoginRefusal::not_found("no target of this name")).await;
        };
        let target = target.to_ascii_lowercase();
        let attached = match self.attach(&target, &export).await {
            Ok(attached) => attached,
            Err(refusal) => return self.refuse(refusal).await,
        };
        let SessionParts { place, seat, attachment, unit } = attached;
        let _counted = Counted::new(&self.inner.counts.sessions);
        tracing::info!(client = %self.client, target, "iSCSI session begins");
        let nexus = unit.attach(port(&self.agreed), Arc::clone(attachment.device()));
        let used = UsedUnit(Arc::clone(&nexus));
        drop(unit);
        let answered = self.answer().await;
        let counts = self.answering.counts;
        let Self { inner, mut stream, mut input, agreed, client, local, stop, .. } = self;
        let (observer, pace) = (attachment.observer(), attachment.pace());
        let phase = Phase::Normal { nexus: Arc::clone(&nexus), observer, pace };
        let shown = client.to_string();
        let mut session = FullFeatureSession::new(inner, &agreed, client, local, counts, phase);
        let ended = match answered {
            Ok(()) => session.run(&mut stream, &mut input, stop, Some(place.orders.clone())).await,
            Err(error) => Err(error),
        };
        place.ends();
        session.settle().await;
        drop((session, used));
        close(attachment, &ended, &shown, &target).await;
        // Whoever waits for the place of the session needs one of its client's, too.
        drop((nexus, seat));
        drop(place);
        ended.map(drop)
    }

    /// The session's place among others, its client's among those of all, its use of the export, and the unit behind that.
    ///
    /// # Errors
    /// The answer to the login when there is none.
    async fn attach(
        &self,
        target: &str,
        export: &str,
    ) -> std::result::Result<SessionParts<'a>, LoginRefusal> {
        let inner = self.inner;
        let late = || LoginRefusal::unavailable("the login took too long");
        let attach = async {
            let key = SessionKey {
                client: self.client.identity(),
                initiator: self.client.initiator.to_ascii_lowercase(),
                isid: self.agreed.isid,
                target: target.to_owned(),
            };
            let place = inner.registry.take_place(key, self.stream.watch()).await;
            let attachment = inner.targets.attach(export, &self.client).await;
            attachment.map(|attachment| (place, attachment)).map_err(|e| refusal_of(&e))
        };
        let attached = tokio::time::timeout_at(self.deadline, attach).await;
        let (place, attachment) = attached.unwrap_or_else(|_| Err(late()))?;
        let is_writable = !attachment.device().read_only();
        let followed = async {
            if is_writable {
                place.follow_lost_ones().await;
            }
        };
        if tokio::time::timeout_at(self.deadline, followed).await.is_err() {
            // The disk is kept for its client, whose older session has it still.
            attachment.close(SessionEnding::Lost).await;
            let why = "what the client's older session has begun takes too long";
            return Err(LoginRefusal::unavailable(why));
        }
        // Behind the sessions that this one takes the place of.
        let seat = match inner.places.take(self.client.identity()) {
            Ok(seat) => seat,
            Err(why) => {
                attachment.close(SessionEnding::Lost).await;
                return Err(LoginRefusal::out_of_resources(why));
            }
        };
        let reader = (!is_writable).then(|| self.client.identity());
        let (attachment, unit) = unit_of(inner, target, reader, attachment).await?;
        Ok(SessionParts { place, seat, attachment, unit })
    }
}

/// What a session that uses a target has.
struct SessionParts<'a> {
    place: RegisteredSession<'a>,
    seat: ClientPlace<'a>,
    attachment: Box<dyn Attachment>,
    unit: Arc<Unit>,
}

/// A session's use of a unit. What does not outlive the session ends with this, also when the session is cut off.
struct UsedUnit(Arc<Nexus>);

impl Drop for UsedUnit {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// The unit behind an attachment, which is closed when there is none.
///
/// # Errors
/// The answer to the login then.
async fn unit_of(
    inner: &Inner,
    target: &str,
    reader: Option<String>,
    attachment: Box<dyn Attachment>,
) -> std::result::Result<(Box<dyn Attachment>, Arc<Unit>), LoginRefusal> {
    let smallest = attachment.device().limits().minimum.max(512);
    let refusal = if attachment.device().size() < smallest.into() {
        LoginRefusal::unavailable("it is smaller than a block")
    } else {
        let identity = attachment.identity();
        match inner.registry.unit(target, identity, reader, &inner.targets).await {
            Ok(unit) => return Ok((attachment, unit)),
            Err(error) => refusal_of(&error),
        }
    };
    // Its client tries again: the disk is kept for it.
    attachment.close(SessionEnding::Lost).await;
    Err(refusal)
}

async fn close(
    attachment: Box<dyn Attachment>,
    ended: &Result<SessionEnd>,
    client: &str,
    target: &str,
) {
    if matches!(ended, Ok(SessionEnd::Stopped))
        && !attachment.device().read_only()
        && let Err(error) = attachment.device().flush().await
    {
        tracing::error!(target, %error, "cannot flush");
    }
    let ending = if matches!(ended, Ok(SessionEnd::LoggedOut)) {
        SessionEnding::Clean
    } else {
        SessionEnding::Lost
    };
    attachment.close(ending).await;
    match ended {
        Ok(end) => tracing::info!(client, target, ?end, "iSCSI session ended"),
        Err(error) => {
            tracing::info!(client, target, error = error.message(), "iSCSI session ended");
        }
    }
}

/// The connection for the full feature phase: it wakes for what is waited for, and can be looked into.
fn stream_of(stream: TcpStream) -> Result<ConnectedSocket> {
    let socket = stream.into_std().map_err(|e| Error::io("the connection", e))?;
    Ok(ConnectedSocket::new(socket.into()))
}

/// The name of an initiator port, by which reservations know it.
fn port(agreed: &Agreed) -> String {
    let isid: String = agreed.isid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{},i,0x{isid}", agreed.initiator.to_ascii_lowercase())
}

fn prepare(inner: &Inner, stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = inner.limits.keepalive;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, keepalive)?;
    sockopt::set_tcp_keepintvl(stream, keepalive / 4)?;
    sockopt::set_tcp_keepcnt(stream, 4)?;
    let milliseconds = u32::try_from(keepalive.as_millis() * 2).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(stream, milliseconds)?;
    Ok(())
}

fn refusal_of(error: &Error) -> LoginRefusal {
    let why = error.message();
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::Invalid => LoginRefusal::not_found(why),
        ErrorKind::Denied => LoginRefusal::denied(why),
        ErrorKind::NoSpace => LoginRefusal::out_of_resources(why),
        _ => LoginRefusal::unavailable(why),
    }
}

async fn refuse(
    inner: &Inner,
    stream: &mut (impl AsyncWrite + Unpin),
    answering: &mut Answering,
    peer: SocketAddr,
    refusal: LoginRefusal,
) -> Result<()> {
    inner.counts.refused.fetch_add(1, Relaxed);
    let why: String = refusal.why.chars().take(300).collect();
    tracing::warn!(%peer, status = ?refusal.status, why, "iSCSI login refused");
    let sent = answering.send(stream, 0, 0, refusal.status, &[]);
    let _ = tokio::time::timeout(inner.limits.login_deadline, sent).await;
    Ok(())
}

/// Goes through the login up to its last answer, which is not sent: what was agreed, and the flags and
/// the text of that answer.
///
/// # Errors
/// When the connection breaks, or what comes is no login.
async fn log_in(
    inner: &Inner,
    stream: &mut TcpStream,
    input: &mut PduBuffer,
    answering: &mut Answering,
) -> Result<std::result::Result<(Agreed, u8, Vec<u8>), LoginRefusal>> {
    let broken = |e| Error::io("the connection", e);
    let mut random = [0; CHALLENGE + 1];
    inner.targets.random(&mut random)?;
    let mut login = Login::new(inner.targets.secrets(), random);
    let mut first = true;
    loop {
        let step = match cut(input.bytes(), Digests::default(), LOGIN_SEGMENT) {
            Ok(PduCut::Short(whole)) => {
                input.make_room(whole);
                let count = stream.read(input.room()).await.map_err(broken)?;
                if count == 0 {
                    return Err(Error::unavailable("it was closed in the login"));
                }
                input.came(count);
                continue;
            }
            Ok(PduCut::Whole(pdu, length)) => match RequestPdu::decode(pdu.header) {
                RequestPdu::Login(request) => (request, login.receive(&request, pdu.data), length),
                _ => return Err(Error::invalid("something else than a login comes first")),
            },
            Err(fault) => return Err(Error::invalid(fault.to_string())),
        };
        let (request, received, length) = step;
        input.consume(length);
        if std::mem::take(&mut first) {
            answering.tag = request.tag;
            answering.isid = request.isid;
            answering.counts.exp_cmd_sn = request.cmd_sn;
        }
        answering.counts.max_cmd_sn = answering.counts.exp_cmd_sn.wrapping_add(WINDOW - 1);
        match received {
            Err(refusal) => return Ok(Err(refusal)),
            Ok(answer) if answer.done => {
                let nothing = || LoginRefusal::not_found("no target is named");
                return Ok(login
                    .agreed()
                    .ok_or_else(nothing)
                    .map(|agreed| (agreed, answer.flags, answer.text)));
            }
            Ok(answer) => {
                answering.send(stream, answer.flags, 0, (0, 0), &answer.text).await?;
            }
        }
    }
}
