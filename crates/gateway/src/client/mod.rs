//! The client's half: a gateway as an object store.
//!
//! | module | concept |
//! |---|---|
//! | `place` | [`ServerPlace`], what the URLs of servers have behind their scheme |
//! | `url` | [`GatewayUrl`], where a gateway is |
//! | `connection` | one HTTP/2 connection, made again when it breaks |
//! | `upload` | the body of a request on its way, and for how long it may stand still |
//! | `upload_turns` | whose turn it is on the connection: uploads leave room for what somebody waits for |
//! | `object` | [`GatewayStore`], the object store |

mod connection;
mod object;
mod place;
mod upload;
mod upload_turns;
mod url;

pub use connection::HttpConnection;
pub use object::GatewayStore;
pub use place::ServerPlace;
pub use url::GatewayUrl;
