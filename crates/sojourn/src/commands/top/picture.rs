//! The picture of `sojourn top`: text, and what of it fits on a screen.

use super::super::cache::in_short;
use super::keys::{Move, Page};
use super::rates::{DiskNow, Rates, ServerRates, SortKey};
use crate::output::Table;
use block::ByteSize;
use server::head_room::HeadRoomView;

/// What is full or slow is told in so many lines at most.
const TROUBLES: usize = 5;
/// The columns of disks that a narrow screen goes without, the first to go first.
const SPARE_OF_DISKS: [&str; 7] =
    ["ERR/S", "GROWTH", "CONN", "CLIENT", "WRITTEN", "READ", "PRIVATE"];
/// The columns of clients that a narrow screen goes without, the first to go first.
const SPARE_OF_CLIENTS: [&str; 3] = ["HELD BACK/S", "CONN", "WRITTEN"];

/// What of the server's state is looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScreenState {
    pub(super) page: Page,
    pub(super) sort: SortKey,
    /// The keys are told in place of the list.
    pub(super) help: bool,
    /// The first row of the list that is shown.
    first: usize,
}

impl ScreenState {
    pub(super) fn new(sort: SortKey) -> Self {
        Self { page: Page::Disks, sort, help: false, first: 0 }
    }

    /// Shows another list, from its beginning.
    pub(super) fn show(&mut self, page: Page) {
        (self.page, self.first) = (page, 0);
    }

    /// Moves in the list of `now` on a screen of that many rows and columns.
    pub(super) fn go(&mut self, to: Move, now: &ServerRates, screen: Size) {
        let room = self.room(now, screen);
        let last = self.length(now).saturating_sub(room);
        self.first = match to {
            Move::Up => self.first.saturating_sub(1),
            Move::Down => self.first + 1,
            Move::PageUp => self.first.saturating_sub(room),
            Move::PageDown => self.first + room,
            Move::First => 0,
            Move::Last => last,
        }
        .min(last);
    }

    fn length(&self, now: &ServerRates) -> usize {
        match self.page {
            Page::Disks => now.disks.len(),
            Page::Clients => now.clients.len(),
        }
    }

    /// How many rows of the list the screen has room for, at least one.
    fn room(&self, now: &ServerRates, screen: Size) -> usize {
        // Beside the list: what stands above it, its titles, its place, the keys.
        screen.rows.saturating_sub(head(now).len() + 3).max(1)
    }
}

/// The size of a screen, in characters.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) rows: usize,
    pub(super) columns: usize,
}

/// All of it.
pub(super) fn whole(now: &ServerRates) -> String {
    let mut text = head(now).join("\n");
    text.push('\n');
    text.push_str(&disks(now).render());
    text
}

/// What fits on a screen: what is full or slow first, then a part of the list, and the keys on the last
/// line.
pub(super) fn on_screen(
    now: &ServerRates,
    view: &ScreenState,
    screen: Size,
    colour: bool,
) -> String {
    let paint = |line: &str, how: &str| match colour {
        true if !how.is_empty() => format!("\x1b[{how}m{line}\x1b[0m"),
        _ => line.to_owned(),
    };
    let short = |line: &str| line.chars().take(screen.columns).collect::<String>();
    let mut lines: Vec<String> = head(now)
        .iter()
        .map(|line| paint(&short(line), if line.starts_with('!') { RED } else { "" }))
        .collect();
    if view.help {
        lines.extend(HELP.lines().map(short));
    } else {
        let (table, spare): (Table, &[&str]) = match view.page {
            Page::Disks => (disks(now), &SPARE_OF_DISKS),
            Page::Clients => (clients(now), &SPARE_OF_CLIENTS),
        };
        let table = table.render_within(screen.columns, spare);
        let mut rows = table.lines();
        lines.extend(rows.next().map(|titles| paint(&short(titles), REVERSE)));
        let (length, room) = (view.length(now), view.room(now, screen));
        // The list may have become shorter since.
        let first = view.first.min(length.saturating_sub(room));
        let troubled = |row: usize| view.page == Page::Disks && state(&now.disks[row]) != "-";
        for (row, line) in rows.enumerate().skip(first).take(room) {
            lines.push(paint(&short(line), if troubled(row) { RED } else { "" }));
        }
        if length > room {
            let (from, to) = (first + 1, (first + room).min(length));
            lines.push(short(&format!(
                "{from} to {to} of {length}; the arrows, Page Up and Page Down move"
            )));
        }
    }
    lines.truncate(screen.rows.saturating_sub(1));
    let by = format!("{:?}", view.sort).to_lowercase();
    let keys = format!(
        "q quit  ? help  d disks  c clients  by {by}: i iops  b bytes  l latency  g growth  n name"
    );
    lines.push(short(&keys));
    lines.join("\r\n")
}

/// Codes of ECMA-48, select graphic rendition.
const RED: &str = "1;31";
const REVERSE: &str = "7";

const HELP: &str = "\
d  disks                 i  sort by requests in a second
c  clients               b  by bytes in a second
?  this, and back        l  by the time that 99 of 100 requests do not exceed
q  quit                  g  by the growth of private blocks
                         n  by name

The arrows (or j and k), Page Up, Page Down (or space), Home and End move in
the list. P50, P99: half, 99 of 100 requests were answered in that time.
A screen that is too narrow goes without some columns; `sojourn top --once`
prints all.
";

/// What stands above the list, and an empty line.
fn head(now: &ServerRates) -> Vec<String> {
    let total = &now.total;
    let hits = now.hit_percent.map_or("-".to_owned(), |percent| format!("{percent:.1} %"));
    let mut lines = vec![
        format!(
            "sojourn, up {}; {} connections, {} clients, {} open disks",
            duration(now.uptime_seconds),
            now.connections,
            now.clients.len(),
            now.open_disks,
        ),
        format!(
            "{:.0} IOPS ({:.0} reads, {:.0} writes, {:.0} flushes), {} read, {} written, {:.0} errors",
            total.iops(),
            total.reads,
            total.writes,
            total.flushes,
            speed(total.read_bytes),
            speed(total.written_bytes),
            total.errors,
        ),
        format!(
            "cache {hits} hits, {} of {} used; store {}",
            ByteSize(now.cache_bytes),
            ByteSize(now.cache_capacity_bytes),
            speed(now.store_read_bytes),
        ),
        format!("head-room: {}", now.head_room.as_ref().map_or("-".to_owned(), HeadRoomView::text)),
    ];
    lines.extend(now.forecast.as_ref().map(|forecast| format!("of late {}", in_short(forecast))));
    lines.extend(now.troubles.iter().take(TROUBLES).map(|trouble| format!("! {trouble}")));
    if now.troubles.len() > TROUBLES {
        lines.push(format!("! and {} more", now.troubles.len() - TROUBLES));
    }
    lines.push(String::new());
    lines
}

fn disks(now: &ServerRates) -> Table {
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
    table
}

fn state(disk: &DiskNow) -> &'static str {
    match (disk.full, disk.slow) {
        (false, false) => "-",
        (false, true) => "slow",
        (true, false) => "full",
        (true, true) => "full, slow",
    }
}

fn clients(now: &ServerRates) -> Table {
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
    table
}

fn cells(rates: &Rates) -> [String; 4] {
    [
        format!("{:.0}", rates.reads),
        format!("{:.0}", rates.writes),
        speed(rates.read_bytes),
        speed(rates.written_bytes),
    ]
}

/// Bytes in a second, in the unit that sizes are told in.
fn speed(bytes: f64) -> String {
    format!("{:.1} MiB/s", bytes / f64::from(1 << 20))
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

#[cfg(test)]
mod tests {
    use super::super::rates::tests::state;
    use super::*;
    use server::status::ExportView;
    use server::trouble::TroubleView;
    use std::time::Duration;

    fn now() -> ServerRates {
        ServerRates::between(&state(1), &state(2), Duration::from_secs(1))
    }

    /// With that many disks, vm1 first.
    fn many(count: usize) -> ServerRates {
        let (mut before, mut after) = (state(1), state(2));
        for state in [&mut before, &mut after] {
            let model = state.exports[0].clone();
            let export = |n| ExportView { name: format!("vm{n}"), ..model.clone() };
            state.exports = (1..=count).map(export).collect();
        }
        let mut now = ServerRates::between(&before, &after, Duration::from_secs(1));
        now.sort(SortKey::Name);
        now
    }

    fn shown(now: &ServerRates, view: &ScreenState, rows: usize, columns: usize) -> String {
        on_screen(now, view, Size { rows, columns }, false)
    }

    #[test]
    fn the_picture_has_every_disk_and_client_and_fits_where_it_must() {
        let now = now();
        let all = whole(&now);
        for word in ["up 1 min 3 s", "330 IOPS", "90.0 % hits", "alice", "bob", "pid:7", "1 us"] {
            assert!(all.contains(word), "no {word:?} in\n{all}");
        }
        let mut view = ScreenState::new(SortKey::Growth);
        let small = shown(&now, &view, 6, 20);
        assert_eq!(small.split("\r\n").count(), 6);
        assert!(small.split("\r\n").all(|line| line.chars().count() <= 20), "{small}");
        assert!(small.ends_with("q quit  ? help  d di"), "{small}");
        view.show(Page::Clients);
        assert!(shown(&now, &view, 24, 100).contains("alice bob"));
        view.help = true;
        assert!(shown(&now, &view, 24, 100).contains("by the growth of private blocks"));
    }

    #[test]
    fn every_disk_of_more_than_the_screen_holds_can_be_reached() {
        let (now, screen) = (many(63), Size { rows: 30, columns: 120 });
        let mut view = ScreenState::new(SortKey::Name);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..4 {
            let text = on_screen(&now, &view, screen, false);
            assert!(text.contains(" of 63; "), "{text}");
            assert_eq!(text.split("\r\n").count(), 30);
            let names = text.split("\r\n").filter_map(|line| line.split(' ').next());
            seen.extend(names.filter(|name| name.starts_with("vm")).map(str::to_owned));
            view.go(Move::PageDown, &now, screen);
        }
        assert_eq!(seen.len(), 63);
        view.go(Move::Down, &now, screen);
        assert!(on_screen(&now, &view, screen, false).contains("to 63 of 63"));
        view.go(Move::First, &now, screen);
        view.go(Move::Up, &now, screen);
        assert!(on_screen(&now, &view, screen, false).contains("\r\n1 to "));
        // Clients left meanwhile.
        view.go(Move::Last, &now, screen);
        assert!(on_screen(&many(2), &view, screen, false).contains("vm1 "));
    }

    #[test]
    fn a_narrow_screen_keeps_names_latencies_and_states() {
        let text = shown(&many(3), &ScreenState::new(SortKey::Name), 24, 80);
        let titles = text.split("\r\n").find(|line| line.starts_with("DISK")).unwrap();
        for title in ["READ/S", "WRITE/S", "P50", "P99", "STATE"] {
            assert!(titles.contains(title), "no {title} in {titles:?}");
        }
        assert!(!titles.contains("ERR/S") && titles.len() <= 80, "{titles:?}");
        let wide = shown(&many(3), &ScreenState::new(SortKey::Name), 24, 160);
        assert!(wide.contains("ERR/S") && wide.contains("GROWTH"), "{wide}");
    }

    #[test]
    fn what_is_full_or_slow_is_told_first_in_few_lines_and_in_red() {
        let mut after = state(2);
        let trouble = |seconds, why: &str| Some(TroubleView { seconds, why: why.to_owned() });
        after.store.slow = trouble(3, "a read took 1.5 s");
        after.exports[0].full = trouble(12, "no room");
        after.exports[1].slow = trouble(7, "a flush took 2.0 s");
        let mut now = ServerRates::between(&state(1), &after, Duration::from_secs(1));
        let all = whole(&now);
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
        let screen = Size { rows: 24, columns: 160 };
        let coloured = on_screen(&now, &ScreenState::new(SortKey::Name), screen, true);
        assert!(coloured.contains("\x1b[1;31m! the store is slow"), "{coloured}");
        assert!(coloured.contains("\x1b[1;31malice"), "{coloured}");
        now.troubles = vec!["x".into(); 8];
        let all = whole(&now);
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
