//! What the gateway is made of that knows neither stores nor rights, for other protocols over HTTP/2 and TLS: a
//! conversation with a client that holds little and does not stand still, bodies that are made while they are
//! taken, a connection that is made again when it breaks.

pub use crate::client::{HttpConnection, ServerPlace};
pub use crate::server::{
    ClientUsage, ConnectionProgress, Conversation, LiveGatewayCounters, ReplyBody, RequestPermit,
    content, problem, slices,
};
