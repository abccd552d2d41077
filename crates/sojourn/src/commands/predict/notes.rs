//! What a prediction does not tell, in a sentence each.

use super::load::TraceLoad;
use super::{Args, Data};
use block::ByteSize;
use model::Profile;

/// Uses of what another client has just asked for, as a share, from which on clients are related.
const RELATED: f64 = 0.05;

/// The notes of a prediction.
pub(super) fn all(args: &Args, profile: &Profile, load: &TraceLoad, block: u64) -> Vec<String> {
    let mut notes = Vec::new();
    let unknown: Vec<&str> = profile.extrapolated(block).map(|c| c.name.as_str()).collect();
    if !unknown.is_empty() {
        notes.push(format!(
            "the profile was not measured with requests of {}: what they take at {} is reckoned from other \
             sizes; `sojourn model fit --block` measures several",
            ByteSize(block),
            unknown.join(", ")
        ));
    }
    if args.served.pieces.0 == 0 && profile.centres.iter().any(model::ProfileCentre::is_store) {
        notes.push(
            "no piece cache is reckoned with: a server whose store is behind a network keeps 4 GiB of it on \
             its disk (pieces.size), and answers far more; --pieces 4GiB tells"
                .to_owned(),
        );
    }
    let kept: f64 = profile.centres.iter().map(|centre| centre.piece).sum();
    if args.served.pieces.0 > 0 && !args.served.simulate && kept > 0.0 {
        notes.push(format!(
            "each piece that the server keeps of its store takes {:.2} ms when it comes, which arithmetic leaves \
             out: while the piece cache fills the server is slower than this; --simulate reckons with it",
            kept * 1e3
        ));
    }
    let most = args.clients.0.last().copied().unwrap_or(0);
    if args.served.simulate || args.data == Data::Private {
        return notes;
    }
    if load.related > RELATED {
        notes.push(format!(
            "{:.0} % of what a client reads another one asks for within the time of a miss, so that they share \
             loads: arithmetic, which takes them for unrelated, cannot tell their throughput; --simulate does",
            load.related * 100.0,
        ));
    } else if most > load.clients {
        notes.push(format!(
            "clients beyond the {} of the trace are taken for unrelated ones; if they ask for the same at the \
             same time, as machines do that boot together, they share loads, and arithmetic cannot tell their \
             throughput; --simulate does",
            load.clients
        ));
    }
    notes
}
