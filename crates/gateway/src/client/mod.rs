//! The client's half: a gateway as an object store.
//!
//! | module | concept |
//! |---|---|
//! | `url` | [`GatewayUrl`], where a gateway is |
//! | `connection` | one HTTP/2 connection, made again when it breaks |
//! | `object` | [`GatewayStore`], the object store |

mod connection;
mod object;
mod url;

pub use connection::HttpConnection;
pub use object::GatewayStore;
pub use url::GatewayUrl;
