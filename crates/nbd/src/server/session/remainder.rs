//! What is left of a connection's streams between two who serve it: a negotiation and the request loop,
//! or two processes.

/// What of a connection was received and not taken, or is to be sent and was not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConnectionRemainder {
    /// What was received and not taken; it may end in the middle of a request.
    pub received: Vec<u8>,
    /// What the client has not taken of its answers.
    pub unsent: Vec<u8>,
    /// Bytes to skip of what was received, or will be: the payload of a request that was refused.
    pub skip: u64,
}
