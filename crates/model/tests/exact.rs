//! The exact solution against published values and closed forms.

#![allow(clippy::unwrap_used)] // a test speaks by panicking

use model::{Centre, CentreKind, Network, Profile};
use proptest::prelude::*;

/// KiB, hit ratio, clients, requests a second, response in ms, utilisation of CPU, network, disk.
type Row = (u64, f64, u32, &'static str, &'static str, [&'static str; 3]);

/// Exact values for the demands of Table 1 of the TransCom paper, as printed.
const TABLE: [Row; 26] = [
    (4, 0.0, 1, "136.05", "7.3500", ["0.0136", "0.0231", "0.9197"]),
    (4, 0.0, 15, "147.93", "101.4000", ["0.0148", "0.0251", "1.0000"]),
    (4, 0.5, 5, "295.86", "16.9001", ["0.0296", "0.0503", "1.0000"]),
    (4, 0.8, 5, "739.44", "6.7618", ["0.0739", "0.1257", "0.9997"]),
    (4, 0.9, 5, "1471.27", "3.3984", ["0.1471", "0.2501", "0.9946"]),
    (4, 0.95, 1, "1077.59", "0.9280", ["0.1078", "0.1832", "0.3642"]),
    (4, 0.95, 5, "2771.07", "1.8044", ["0.2771", "0.4711", "0.9366"]),
    (4, 0.95, 15, "2958.37", "5.0704", ["0.2958", "0.5029", "0.9999"]),
    (4, 0.95, 50, "2958.58", "16.9000", ["0.2959", "0.5030", "1.0000"]),
    (4, 0.975, 5, "4175.04", "1.1976", ["0.4175", "0.7098", "0.7056"]),
    (4, 0.975, 15, "5434.43", "2.7602", ["0.5434", "0.9239", "0.9184"]),
    (4, 0.975, 50, "5775.19", "8.6577", ["0.5775", "0.9818", "0.9760"]),
    (4, 1.0, 1, "1694.92", "0.5900", ["0.1695", "0.2881", "0.0000"]),
    (4, 1.0, 5, "5210.97", "0.9595", ["0.5211", "0.8859", "0.0000"]),
    (4, 1.0, 15, "5879.19", "2.5514", ["0.5879", "0.9995", "0.0000"]),
    (4, 1.0, 50, "5882.35", "8.5000", ["0.5882", "1.0000", "0.0000"]),
    (32, 0.0, 1, "95.33", "10.4900", ["0.0219", "0.0477", "0.6864"]),
    (32, 0.8, 5, "645.49", "7.7460", ["0.1485", "0.3227", "0.9295"]),
    (32, 0.9, 5, "981.32", "5.0952", ["0.2257", "0.4907", "0.7066"]),
    (32, 0.9, 15, "1377.94", "10.8858", ["0.3169", "0.6890", "0.9921"]),
    (32, 0.95, 5, "1176.08", "4.2514", ["0.2705", "0.5880", "0.4234"]),
    (32, 0.95, 15, "1954.87", "7.6731", ["0.4496", "0.9774", "0.7038"]),
    (32, 0.95, 50, "2000.00", "25.0000", ["0.4600", "1.0000", "0.7200"]),
    (32, 0.975, 15, "1992.98", "7.5264", ["0.4584", "0.9965", "0.3587"]),
    (32, 1.0, 5, "1317.33", "3.7955", ["0.3030", "0.6587", "0.0000"]),
    (32, 1.0, 15, "1996.53", "7.5130", ["0.4592", "0.9983", "0.0000"]),
];

#[test]
fn the_papers_server_comes_out_to_the_printed_digit() {
    let profile = Profile::transcom().unwrap();
    for (kib, hit, clients, throughput, response, used) in TABLE {
        let row = format!("{kib} KiB, {hit}, {clients} clients");
        let got = profile.network(kib << 10, hit, 0.0).unwrap().solve(clients).unwrap();
        assert_eq!(format!("{:.2}", got.throughput), throughput, "{row}");
        assert_eq!(format!("{:.4}", got.response * 1e3), response, "{row}");
        let [cpu, network, disk, _] = got.centres[..] else { panic!("four centres") };
        for (centre, expected) in [cpu, network, disk].iter().zip(used) {
            assert_eq!(format!("{:.4}", centre.utilisation), expected, "{row}");
        }
    }
}

#[test]
fn the_papers_knees_are_where_they_were_computed() {
    let profile = Profile::transcom().unwrap();
    for (kib, knee) in [(4, 3.5), (32, 6.6)] {
        let bounds = profile.network(kib << 10, 1.0, 0.0).unwrap().bounds();
        assert!((bounds.knee().unwrap() - knee).abs() < 0.05, "{:?}", bounds.knee());
    }
}

fn network(think: f64, centres: &[(f64, CentreKind)]) -> Network {
    let centre = |(demand, kind): &(f64, CentreKind)| Centre {
        name: "centre".into(),
        kind: *kind,
        demand: *demand,
    };
    Network::new(think, centres.iter().map(centre).collect()).unwrap()
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-10 * a.abs().max(b.abs())
}

fn kinds() -> impl Strategy<Value = Vec<(f64, CentreKind)>> {
    let kind = prop_oneof![
        3 => Just(CentreKind::Queue),
        1 => Just(CentreKind::Delay),
        1 => (2u32..9).prop_map(CentreKind::Servers),
    ];
    proptest::collection::vec((1e-5f64..1.0, kind), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A balanced network: X(N) = N / (D (N + K - 1)).
    #[test]
    fn equal_queues_without_thinking_have_their_closed_form(
        demand in 1e-5f64..10.0, count in 1usize..9, clients in 1u32..300,
    ) {
        let got = network(0.0, &vec![(demand, CentreKind::Queue); count]).solve(clients).unwrap();
        let n = f64::from(clients);
        prop_assert!(close(got.throughput, n / (demand * (n + count as f64 - 1.0))));
        prop_assert!(close(got.centres[0].queue, n / count as f64));
    }

    /// Delays alone: nobody waits.
    #[test]
    fn delays_alone_never_make_anybody_wait(
        demand in 1e-5f64..10.0, think in 0.0f64..10.0, clients in 1u32..300,
    ) {
        let got = network(think, &[(demand, CentreKind::Delay)]).solve(clients).unwrap();
        prop_assert!(close(got.response, demand));
        prop_assert!(close(got.throughput, f64::from(clients) / (demand + think)));
    }

    /// One queue and a think time: the machine-repair model with one repairer,
    /// X = (1 - p0) / D with p0 from Erlang's recursion.
    #[test]
    fn one_queue_and_thinking_is_the_machine_repair_model(
        demand in 1e-3f64..1.0, think in 1e-3f64..10.0, clients in 1u32..100,
    ) {
        let got = network(think, &[(demand, CentreKind::Queue)]).solve(clients).unwrap();
        // 1/p0 = sum of N!/(N-i)! (D/Z)^i, as nested products.
        let mut exact = 1.0;
        for left in 1..=clients {
            exact = 1.0 + f64::from(left) * demand / think * exact;
        }
        prop_assert!(close(got.throughput, (1.0 - 1.0 / exact) / demand));
    }

    #[test]
    fn every_solution_keeps_littles_law_and_its_bounds(
        centres in kinds(), think in prop_oneof![Just(0.0), 1e-3f64..10.0], clients in 1u32..120,
    ) {
        let network = network(think, &centres);
        let bounds = network.bounds();
        let mut last = 0.0;
        for got in network.sweep(clients).unwrap() {
            prop_assert!(close(got.throughput * (think + got.response), f64::from(got.clients)));
            prop_assert!(got.throughput <= bounds.throughput(got.clients) * (1.0 + 1e-12));
            prop_assert!(got.response >= bounds.response(got.clients) * (1.0 - 1e-9));
            prop_assert!(got.throughput >= last * (1.0 - 1e-12));
            last = got.throughput;
            for (centre, used) in network.centres().iter().zip(&got.centres) {
                prop_assert!(close(used.queue, got.throughput * used.residence));
                prop_assert!(used.residence >= centre.demand * (1.0 - 1e-9));
                prop_assert!(centre.kind == CentreKind::Delay || used.utilisation <= 1.0 + 1e-12);
            }
        }
    }
}

#[test]
fn senseless_networks_are_refused() {
    let centre = |demand, kind| Centre { name: "c".into(), kind, demand };
    for (think, centres) in [
        (0.0, vec![]),
        (0.0, vec![centre(0.0, CentreKind::Queue)]),
        (-1.0, vec![centre(1.0, CentreKind::Queue)]),
        (f64::NAN, vec![centre(1.0, CentreKind::Queue)]),
        (0.0, vec![centre(f64::INFINITY, CentreKind::Queue)]),
        (0.0, vec![centre(-0.1, CentreKind::Delay)]),
        (0.0, vec![centre(1.0, CentreKind::Servers(1))]),
        (0.0, vec![centre(1.0, CentreKind::Servers(2000))]),
        (0.0, vec![centre(1.0, CentreKind::Queue); 65]),
    ] {
        assert!(Network::new(think, centres).is_err());
    }
    let network = Network::new(0.0, vec![centre(1.0, CentreKind::Queue)]).unwrap();
    assert!(network.solve(100_001).is_err());
    assert!(network.solve(0).is_err());
}
