//! The picture of `sojourn top`, and the terminal that it is shown in.

use super::super::cache::in_short;
use super::rates::{DiskNow, Now, Rates, SortKey};
use crate::output::{Table, raw};
use block::{ByteSize, Error, Result};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use server::head_room::HeadRoomView;

/// What is full or slow is told in so many lines at most.
const TROUBLES: usize = 5;

/// What is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Page {
    Disks,
    Clients,
}

/// The picture as text: all of it, or what fits into so many rows and columns.
pub(super) fn text(now: &Now, page: Page, sort: SortKey, fit: Option<(usize, usize)>) -> String {
    let total = &now.total;
    let hits = now.hit_percent.map_or("-".to_owned(), |percent| format!("{percent:.1} %"));
    let mut text = format!(
        "sojourn, up {}; {} connections, {} clients, {} open disks\n\
         {:.0} IOPS ({:.0} reads, {:.0} writes, {:.0} flushes), {} read, {} written, {:.0} errors\n\
         cache {hits} hits, {} of {} used; store {}\n\
         head-room: {}\n",
        duration(now.uptime_seconds),
        now.connections,
        now.clients.len(),
        now.open_disks,
        total.iops(),
        total.reads,
        total.writes,
        total.flushes,
        speed(total.read_bytes),
        speed(total.written_bytes),
        total.errors,
        ByteSize(now.cache_bytes),
        ByteSize(now.cache_capacity_bytes),
        speed(now.store_read_bytes),
        now.head_room.as_ref().map_or("-".to_owned(), HeadRoomView::text),
    );
    if let Some(forecast) = &now.forecast {
        text.push_str(&format!("of late {}\n", in_short(forecast)));
    }
    for trouble in now.troubles.iter().take(TROUBLES) {
        text.push_str(&format!("! {trouble}\n"));
    }
    if now.troubles.len() > TROUBLES {
        text.push_str(&format!("! and {} more\n", now.troubles.len() - TROUBLES));
    }
    text.push('\n');
    text.push_str(&match page {
        Page::Disks => disks(now),
        Page::Clients => clients(now),
    });
    match fit {
        Some((rows, columns)) => cut(&text, sort, rows, columns),
        None => text,
    }
}

fn disks(now: &Now) -> String {
    let mut table = Table::new(&[
        "DISK", "CLIENT", ">CONN", ">READ/S", ">WRITE/S", ">READ", ">WRITTEN", ">P50", ">P99",
        ">PRIVATE", ">GROWTH", ">ERR/S", "STATE",
    ]);
    for disk in &now.disks {
        let [reads, writes, read, written] = cells(&disk.rates);
        table.row([
            disk.name.clone(),
            disk.client.clone().unwrap_or("-".into()),
            disk.connections.to_string(),
            reads,
            writes,
            read,
            written,
            disk.p50_us.map_or("-".into(), time),
            disk.p99_us.map_or("-".into(), time),
            disk.private_bytes.map_or("-".into(), |bytes| ByteSize(bytes).to_string()),
            disk.growth_bytes.map_or("-".into(), |bytes| match bytes < 0.0 {
                true => format!("-{}", speed(-bytes)),
                false => speed(bytes),
            }),
            format!("{:.0}", disk.rates.errors),
            state(disk).to_owned(),
        ]);
    }
    table.render()
}

fn state(disk: &DiskNow) -> &'static str {
    match (disk.full, disk.slow) {
        (false, false) => "-",
        (false, true) => "slow",
        (true, false) => "full",
        (true, true) => "full, slow",
    }
}

fn clients(now: &Now) -> String {
    let mut table = Table::new(&[
        "CLIENT",
        ">CONN",
        ">READ/S",
        ">WRITE/S",
        ">READ",
        ">WRITTEN",
        ">HELD BACK/S",
        "EXPORTS",
    ]);
    for client in &now.clients {
        let [reads, writes, read, written] = cells(&client.rates);
        table.row([
            client.client.clone(),
            client.connections.to_string(),
            reads,
            writes,
            read,
            written,
            format!("{:.0}", client.rates.paced),
            client.exports.join(" "),
        ]);
    }
    table.render()
}

fn cells(rates: &Rates) -> [String; 4] {
    [
        format!("{:.0}", rates.reads),
        format!("{:.0}", rates.writes),
        speed(rates.read_bytes),
        speed(rates.written_bytes),
    ]
}

fn speed(bytes: f64) -> String {
    format!("{:.1} MB/s", bytes / 1e6)
}

fn time(us: f64) -> String {
    match us {
        _ if us < 1e3 => format!("{us:.0} us"),
        _ if us < 1e6 => format!("{:.1} ms", us / 1e3),
        _ => format!("{:.1} s", us / 1e6),
    }
}

fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes} min {} s", seconds % 60),
        (0, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// What fits on a screen, with the keys on its last line.
fn cut(text: &str, sort: SortKey, rows: usize, columns: usize) -> String {
    let short = |line: &str| line.chars().take(columns).collect::<String>();
    let mut lines: Vec<String> = text.lines().map(short).collect();
    lines.truncate(rows.saturating_sub(1));
    let by = format!("{sort:?}").to_lowercase();
    lines.push(short(&format!(
        "q quit  d disks  c clients  by {by}: i iops  b bytes  l latency  g growth  n name"
    )));
    lines.join("\r\n")
}

/// The terminal while it is ours: the alternate screen, keys as they are pressed, no cursor. It is
/// as it was when this is dropped.
pub(super) struct Screen(Termios);

impl Screen {
    pub(super) fn take() -> Result<Self> {
        let fail = |e: rustix::io::Errno| Error::io("the terminal", e.into());
        let before = tcgetattr(std::io::stdin()).map_err(fail)?;
        let mut keys = before.clone();
        keys.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        keys.special_codes[SpecialCodeIndex::VMIN] = 1;
        keys.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(std::io::stdin(), OptionalActions::Now, &keys).map_err(fail)?;
        let screen = Self(before);
        raw(b"\x1b[?1049h\x1b[?25l")?;
        Ok(screen)
    }

    pub(super) fn show(&self, now: &Now, page: Page, sort: SortKey) -> Result<()> {
        let size = tcgetwinsize(std::io::stdout()).ok().filter(|size| size.ws_row > 0);
        let fit = size.map_or((24, 80), |size| (size.ws_row.into(), size.ws_col.into()));
        let picture = text(now, page, sort, Some(fit));
        raw(format!("\x1b[H\x1b[2J{picture}").as_bytes())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = raw(b"\x1b[?25h\x1b[?1049l");
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::rates::tests::state;
    use super::*;
    use server::strain::TroubleView;
    use std::time::Duration;

    #[test]
    fn the_picture_has_every_disk_and_client_and_fits_where_it_must() {
        let now = Now::between(&state(1), &state(2), Duration::from_secs(1));
        let all = text(&now, Page::Disks, SortKey::Iops, None);
        for word in ["up 1 min 3 s", "330 IOPS", "90.0 % hits", "alice", "bob", "pid:7", "1 us"] {
            assert!(all.contains(word), "no {word:?} in\n{all}");
        }
        assert!(text(&now, Page::Clients, SortKey::Name, None).contains("alice bob"));
        let small = text(&now, Page::Disks, SortKey::Growth, Some((6, 20)));
        assert_eq!(small.split("\r\n").count(), 6);
        assert!(small.split("\r\n").all(|line| line.chars().count() <= 20), "{small}");
        assert!(small.ends_with("q quit  d disks  c c"), "{small}");
    }

    #[test]
    fn what_is_full_or_slow_is_told_first_and_in_few_lines() {
        let mut after = state(2);
        let trouble = |seconds, why: &str| Some(TroubleView { seconds, why: why.to_owned() });
        after.store.slow = trouble(3, "a read took 1.5 s");
        after.exports[0].full = trouble(12, "no room");
        after.exports[1].slow = trouble(7, "a flush took 2.0 s");
        let mut now = Now::between(&state(1), &after, Duration::from_secs(1));
        let all = text(&now, Page::Disks, SortKey::Name, None);
        for line in [
            "! the store is slow for 3 s: a read took 1.5 s\n",
            "! disk alice is full for 12 s: no room\n",
            "! disk bob is slow for 7 s: a flush took 2.0 s\n\n",
        ] {
            assert!(all.contains(line), "no {line:?} in\n{all}");
        }
        let states: Vec<_> =
            all.lines().filter_map(|line| line.split_whitespace().last()).collect();
        assert_eq!(states[states.len() - 3..], ["STATE", "full", "slow"], "{all}");
        now.troubles = vec!["x".into(); 8];
        let all = text(&now, Page::Clients, SortKey::Name, None);
        assert!(all.matches("! x\n").count() == 5 && all.contains("! and 3 more\n"), "{all}");
    }

    #[test]
    fn times_are_told_in_the_unit_that_fits() {
        assert_eq!(
            (time(12.4), time(1500.0), time(2.5e6)),
            ("12 us".into(), "1.5 ms".into(), "2.5 s".into())
        );
        assert_eq!(
            (duration(59), duration(7260), duration(90_000)),
            ("0 min 59 s".into(), "2 h 1 min".into(), "1 d 1 h".into())
        );
    }
}
