//! Reads a trace to its end.

use std::io::Cursor;
use trace::{Format, OpenTraceOptions};

/// Reads bytes as a trace, as they come and sorted, and checks what every trace promises.
pub fn drain(bytes: &[u8], format: Option<Format>) {
    for sort in [false, true] {
        let options = OpenTraceOptions { format, sort, shift: 512, ..OpenTraceOptions::default() };
        let input = Box::new(Cursor::new(bytes.to_vec()));
        let Ok(mut source) = trace::read(input, "input", &options) else { continue };
        let (mut batch, mut last, mut requests) = (Vec::new(), 0, 0);
        while let Ok(true) = source.read(&mut batch) {
            for request in &batch {
                assert!(request.time >= last, "times go back");
                last = request.time;
                let end = request.offset.checked_add(request.length.into()).expect("no overflow");
                assert!(end <= 1 << 63, "a place beyond the limit");
                assert!(request.client.max(request.disk) < 1 << 20, "a party beyond the limit");
            }
            requests += batch.len() as u64;
            // A block of a few bytes may hold very many requests.
            if requests > 1 << 20 {
                break;
            }
        }
    }
}
