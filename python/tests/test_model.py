"""Closed queueing networks."""

import pytest

import sojourn

# Milliseconds of Table 1 of the TransCom paper, blocks of 4 KiB.
CPU, DISK, NETWORK, CLIENT = 0.1e-3, 6.76e-3, 0.17e-3, 0.32e-3


def at(hit, clients):
    """The server of Table 1 at a hit ratio."""
    demands = {"cpu": CPU, "network": NETWORK, "disk": (1 - hit) * DISK}
    return sojourn.solve(demands, clients, delays={"client": CLIENT})


@pytest.mark.parametrize(
    ("hit", "clients", "throughput", "response"),
    [(0, 1, 136.05, 7.35), (0.9, 5, 1471.27, 3.3984), (0.95, 50, 2958.58, 16.9), (1, 15, 5879.19, 2.5514)],
)
def test_exact_values_are_those_of_the_reference(hit, clients, throughput, response):
    solution = at(hit, clients)
    assert round(solution.throughput[-1], 2) == throughput
    assert round(solution.response[-1] * 1e3, 4) == response


def test_a_solution_has_a_row_for_each_number_of_clients():
    solution = at(0.5, 30)
    assert solution.centres == ["cpu", "network", "disk", "client"]
    assert solution.clients.tolist() == list(range(1, 31))
    assert solution.utilisation.shape == solution.queue.shape == solution.residence.shape == (30, 4)
    assert solution.bottleneck == "disk"
    assert solution.knee == pytest.approx((CPU + NETWORK + DISK / 2 + CLIENT) / (DISK / 2))
    # Little's law: all clients are somewhere.
    assert solution.queue.sum(axis=1) == pytest.approx(solution.clients)


def test_several_servers_serve_more():
    one = sojourn.solve({"disk": 1e-3}, 8)
    four = sojourn.solve({"disk": (1e-3, 4)}, 8)
    assert one.throughput[-1] == pytest.approx(1e3)
    assert four.throughput[-1] == pytest.approx(4e3, rel=1e-6)


def test_what_is_no_network_is_refused():
    with pytest.raises(ValueError, match="negative|from 0"):
        sojourn.solve({"disk": -1.0}, 3)
    with pytest.raises(ValueError, match="give 1 or more"):
        sojourn.solve({"disk": 1e-3}, 0)
    with pytest.raises(ValueError, match="centres"):
        sojourn.solve({}, 3)
