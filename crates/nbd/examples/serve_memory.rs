//! Serves a device in memory until interrupted: the smallest whole server.
//!
//! ```text
//! cargo run -p nbd --example serve_memory -- unix:/tmp/memory.sock 64M
//! nbdinfo 'nbd+unix:///?socket=/tmp/memory.sock'
//! ```

#![allow(clippy::print_stderr)]

use async_trait::async_trait;
use block::{ByteSize, Device, Error, Memory, Result};
use nbd::{
    ExportSummary, Exports, Listener, Peer, Purpose, Server, ServerLimits, Session, SessionEnding,
};
use std::sync::Arc;

/// One device, under the name `memory` and as the default export.
struct OneDevice(Arc<dyn Device>);

struct Open(Arc<dyn Device>);

#[async_trait]
impl Exports for OneDevice {
    async fn list(&self, _: &Peer) -> Result<Vec<ExportSummary>> {
        let description = "bytes in memory".to_owned();
        Ok(vec![ExportSummary { name: "memory".to_owned(), description }])
    }

    async fn open(&self, name: &str, _: &Peer, _: Purpose) -> Result<Box<dyn Session>> {
        match name {
            "" | "memory" => Ok(Box::new(Open(Arc::clone(&self.0)))),
            _ => Err(Error::not_found(format!("there is no export {name:?}"))),
        }
    }
}

#[async_trait]
impl Session for Open {
    fn device(&self) -> &Arc<dyn Device> {
        &self.0
    }
    fn name(&self) -> &str {
        "memory"
    }
    fn description(&self) -> Option<&str> {
        Some("bytes in memory")
    }
    async fn close(self: Box<Self>, _: SessionEnding) {}
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let address = words.next().unwrap_or_else(|| "unix:/tmp/memory.sock".to_owned()).parse()?;
    let size: ByteSize = words.next().unwrap_or_else(|| "64M".to_owned()).parse()?;
    let device = Arc::new(Memory::new(size.0));
    let server = Server::new(Arc::new(OneDevice(device)), ServerLimits::default());
    let listener = Listener::bind(&address, nbd::server::DEFAULT_BACKLOG).await?;
    eprintln!("serving {size} at {}", listener.address());
    let stop = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    server.serve(listener, stop).await?;
    eprintln!("{:#?}", server.counters());
    Ok(())
}
