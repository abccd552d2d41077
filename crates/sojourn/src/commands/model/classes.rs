//! A profile with several classes of clients, solved for their mix.

use super::solved::{not_measured, percent};
use crate::output::{Output, Table};
use block::{ByteSize, Result};
use model::file::Contents;
use model::multiclass::{Class, solve};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

#[derive(Serialize)]
struct ClassesView {
    profile: String,
    classes: Vec<ClassView>,
    utilisation: BTreeMap<String, f64>,
}

#[derive(Serialize)]
struct ClassView {
    name: String,
    clients: u32,
    block: u64,
    /// Whether the block size lies outside of those that the profile has demands for.
    extrapolated: bool,
    /// Requests a second.
    throughput: f64,
    bytes_per_second: f64,
    response_ms: f64,
}

pub(super) fn run(contents: &Contents, output: Output) -> Result<()> {
    let profile = &contents.profile;
    let mut classes = Vec::new();
    let mut blocks = Vec::new();
    for class in &contents.classes {
        let block = class.block.parse::<ByteSize>()?.0;
        let demands = profile.demands(block, class.hit);
        classes.push(Class {
            name: class.name.clone(),
            clients: class.clients,
            think: class.think_ms / 1e3,
            demands: demands.map_err(|e| e.context(format!("class {:?}", class.name)))?,
        });
        blocks.push(block);
    }
    let kinds: Vec<_> = profile.centres.iter().map(|centre| centre.kind).collect();
    let solution = solve(&kinds, &classes)?;
    let views = classes.iter().zip(&blocks).zip(&solution.classes);
    let views = views.map(|((class, block), solved)| ClassView {
        name: class.name.clone(),
        clients: class.clients,
        block: *block,
        extrapolated: profile.extrapolated(*block).next().is_some(),
        throughput: solved.throughput,
        bytes_per_second: solved.throughput * *block as f64,
        response_ms: solved.response * 1e3,
    });
    let queues = profile.centres.iter().zip(&solution.utilisations);
    let queues = queues.filter(|(centre, _)| centre.kind != model::CentreKind::Delay);
    let view = ClassesView {
        profile: profile.name.clone(),
        classes: views.collect(),
        utilisation: queues.map(|(centre, used)| (centre.name.clone(), *used)).collect(),
    };
    output.print(&view, || text(&view))
}

fn text(view: &ClassesView) -> String {
    let mut table = Table::new(&["CLASS", ">CLIENTS", ">REQUESTS/S", ">MIB/S", ">RESPONSE MS"]);
    for class in &view.classes {
        table.row([
            class.name.clone(),
            class.clients.to_string(),
            format!("{:.2}", class.throughput),
            format!("{:.2}", class.bytes_per_second / f64::from(1 << 20)),
            format!("{:.4}", class.response_ms),
        ]);
    }
    let mut text = table.render();
    for (name, used) in &view.utilisation {
        let _ = writeln!(text, "{name}: {} busy", percent(*used));
    }
    let classes = view.classes.iter().filter(|class| class.extrapolated);
    text.push_str(&not_measured(classes.map(|class| class.block)));
    text
}
