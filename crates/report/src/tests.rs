use crate::{Axis, Bars, Plot, Report, Series, Table, Unit};
use proptest::prelude::*;

/// Every element that is opened is closed, in order: what an XML parser would check first.
fn well_formed(html: &str) {
    let mut open = Vec::new();
    let void = ["meta", "!doctype"];
    for tag in html.split('<').skip(1).map(|part| part.split('>').next().unwrap()) {
        let name = tag.trim_end_matches('/').split_whitespace().next().unwrap();
        if let Some(closed) = name.strip_prefix('/') {
            assert_eq!(open.pop(), Some(closed.to_owned()), "closes in order");
        } else if !tag.ends_with('/') && !void.contains(&name) {
            open.push(name.to_owned());
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
}

#[test]
fn numbers_are_written_for_people() {
    assert_eq!(Unit::Bytes.show(0.0), "0 B");
    assert_eq!(Unit::Bytes.show(1536.0), "1.5 KiB");
    assert_eq!(Unit::Bytes.show(268_435_456.0), "256 MiB");
    assert_eq!(Unit::Number.show(914_145.0), "914.1 k");
    assert_eq!(Unit::Percent.show(66.666), "66.67 %");
    assert_eq!(Unit::Seconds.show(0.000_012_5), "12.5 \u{b5}s");
    assert_eq!(Unit::Seconds.show(3600.0), "60 min");
    assert_eq!(Unit::Number.show(-12.0), "-12");
    for unit in [Unit::Number, Unit::Bytes, Unit::Percent, Unit::Seconds] {
        let text = unit.show(1e300);
        assert!(text.len() < 20 && text.contains('e'), "{text}");
    }
    assert_eq!(Unit::Number.show(0.000_25), "2.50e-4");
}

#[test]
fn axes_end_at_round_numbers_around_the_data() {
    let ticks = |axis: Axis, values: &[f64]| axis.lay_out(values.iter().copied()).ticks;
    let linear = ticks(Axis::new("", Unit::Number), &[3.0, 97.0]);
    assert_eq!(linear, [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
    let bytes = ticks(Axis::log("", Unit::Bytes), &[4096.0, 32768.0]);
    assert_eq!(bytes, [4096.0, 8192.0, 16384.0, 32768.0]);
    let decades = ticks(Axis::log("", Unit::Number), &[0.9, 1100.0]);
    assert_eq!(decades, [0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0]);
    let narrow = ticks(Axis::log("", Unit::Seconds), &[1.0, 30.0]);
    assert_eq!(narrow, [1.0, 2.0, 5.0, 10.0, 20.0]);
    assert_eq!(ticks(Axis::new("", Unit::Number).between(0.0, 1.0), &[5.0]).first(), Some(&0.0));
}

#[test]
fn a_page_stands_alone_and_holds_no_script() {
    let plot = Plot::new("t", Axis::log("x", Unit::Bytes), Axis::new("y", Unit::Percent))
        .series(Series::new("a", [(4096.0, 10.0), (8192.0, 20.0)]))
        .series(Series::new("b", [(4096.0, 11.0)]).dashed())
        .mark(8192.0, "here");
    let bars = Bars::new("b", "size", ["4K", "8K"], Axis::new("n", Unit::Number))
        .series("reads", [3.0, 4.0])
        .series("writes", [1.0, 2.0])
        .stacked();
    let mut table = Table::new(["name", ">n"]);
    table.row(["x", "1"]);
    let page = Report::new("R")
        .heading("h")
        .text("p")
        .facts([("hits", "42 %")])
        .table(&table)
        .plot(plot)
        .bars(bars)
        .render();
    well_formed(&page);
    for foreign in ["<script", "http:", "https:", "url(", "@import", "src="] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    assert!(page.contains("prefers-color-scheme:dark") && page.contains("42 %"));
    assert_eq!(page.matches("<polyline").count(), 2);
    assert_eq!(page.matches("<rect").count(), 4);
}

#[test]
fn names_cannot_break_out_of_the_page() {
    let evil = "</title><script>alert(1)</script>\"'&\u{1}";
    let plot = Plot::new(evil, Axis::new(evil, Unit::Number), Axis::new(evil, Unit::Number))
        .series(Series::new(evil, [(1.0, 1.0)]))
        .mark(1.0, evil);
    let bars = Bars::new(evil, evil, [evil], Axis::new(evil, Unit::Number)).series(evil, [1.0]);
    let mut table = Table::new([evil]);
    table.row([evil]);
    let page = Report::new(evil)
        .heading(evil)
        .text(evil)
        .preformatted(evil)
        .facts([(evil, evil)])
        .table(&table)
        .plot(plot)
        .bars(bars)
        .render();
    well_formed(&page);
    assert!(!page.contains("<script") && !page.contains('\u{1}'));
}

#[test]
fn a_line_of_a_million_points_stays_small() {
    let points = (0..1_000_000).map(|i| (f64::from(i), f64::from(i % 1000)));
    let plot = Plot::new("", Axis::new("", Unit::Number), Axis::new("", Unit::Number))
        .series(Series::new("", points));
    assert!(Report::new("").plot(plot).render().len() < 200_000);
}

proptest! {
    #[test]
    fn any_numbers_give_a_page_whose_shapes_lie_inside_it(
        points in prop::collection::vec((any::<f64>(), any::<f64>()), 0..40),
        log_x: bool, log_y: bool, stacked: bool,
    ) {
        let axis = |log: bool| {
            let make = if log { Axis::log } else { Axis::new };
            make("a".to_owned(), Unit::Number)
        };
        let plot = Plot::new("p", axis(log_x), axis(log_y)).series(Series::new("s", points.clone()).steps());
        let mut bars = Bars::new("b", "c", points.iter().map(|p| p.0.to_string()), axis(log_y && !stacked))
            .series("one", points.iter().map(|p| p.0))
            .series("two", points.iter().map(|p| p.1));
        if stacked {
            bars = bars.stacked();
        }
        let page = Report::new("r").plot(plot).bars(bars).render();
        well_formed(&page);
        let drawn: String = page.split("<svg").skip(1).map(|s| s.split("</svg>").next().unwrap()).collect();
        for attribute in ["points=\"", "cx=\"", "cy=\"", " x=\"", " y=\"", "height=\"", "width=\""] {
            for value in drawn.split(attribute).skip(1) {
                for number in value.split('"').next().unwrap().split([',', ' ']).filter(|n| !n.is_empty()) {
                    let number: f64 = number.parse().unwrap();
                    prop_assert!((0.0..=900.0).contains(&number), "{attribute}{number}");
                }
            }
        }
    }
}

#[test]
fn no_two_lines_of_a_plot_look_the_same_and_the_last_tick_is_whole() {
    // As many as there are policies; the last one is the best possible.
    let x = Axis::log("cache", Unit::Bytes).between(1048576.0, 1610612736.0);
    let mut plot = Plot::new("hits", x, Axis::new("hits", Unit::Percent));
    for number in 0..14 {
        let series = Series::new(format!("p{number}"), [(1048576.0, 1.0), (1610612736.0, 2.0)]);
        plot = plot.series(if number == 13 { series.dashed() } else { series });
    }
    let page = Report::new("x").plot(plot).render();
    let mut looks: Vec<&str> = (page.split("<polyline class=\"").skip(1))
        .map(|line| line.split('"').next().unwrap())
        .collect();
    assert_eq!(looks.len(), 14);
    looks.sort_unstable();
    looks.dedup();
    assert_eq!(looks.len(), 14, "{looks:?}");
    let label = page.split("</text>").find(|text| text.ends_with("GiB")).unwrap();
    let (at, text) = label.rsplit_once("<text x=\"").unwrap().1.split_once('"').unwrap();
    let width = text.rsplit('>').next().unwrap().chars().count() as f64 * 7.0;
    assert!(at.parse::<f64>().unwrap() + width / 2.0 <= 860.0, "{label}");
}
