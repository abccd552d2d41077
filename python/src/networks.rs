//! Closed queueing networks.

use crate::convert::raise;
use model::{Centre, CentreKind, Network};
use numpy::{PyArray1, PyArray2};
use pyo3::prelude::*;

/// A demand: seconds, or seconds and servers.
#[derive(FromPyObject)]
pub(crate) enum DemandArgument {
    /// At a single server.
    Single(f64),
    /// At several.
    Servers(f64, u32),
}

/// The exact solution for 1 to n clients.
#[pyclass(frozen, module = "sojourn")]
pub(crate) struct Solution {
    network: Network,
    all: Vec<model::Solution>,
}

/// Solves a network exactly.
#[pyfunction]
#[pyo3(signature = (demands, clients, *, delays=None, think=0.0))]
pub(crate) fn solve(
    py: Python<'_>,
    demands: Vec<(String, DemandArgument)>,
    clients: u32,
    delays: Option<Vec<(String, f64)>>,
    think: f64,
) -> PyResult<Solution> {
    let mut centres: Vec<Centre> = demands
        .into_iter()
        .map(|(name, demand)| match demand {
            DemandArgument::Single(demand) | DemandArgument::Servers(demand, 1) => {
                Centre { name, kind: CentreKind::Queue, demand }
            }
            DemandArgument::Servers(demand, count) => {
                Centre { name, kind: CentreKind::Servers(count), demand }
            }
        })
        .collect();
    let delays = delays.unwrap_or_default().into_iter();
    centres.extend(delays.map(|(name, demand)| Centre { name, kind: CentreKind::Delay, demand }));
    let solve = || -> block::Result<Solution> {
        if clients == 0 {
            return Err(block::Error::invalid("a network without clients: give 1 or more"));
        }
        let network = Network::new(think, centres)?;
        let all = network.sweep(clients)?;
        Ok(Solution { network, all })
    };
    py.detach(solve).map_err(raise)
}

impl Solution {
    fn matrix<'py>(
        &self,
        py: Python<'py>,
        value: impl Fn(&model::CentreUse) -> f64,
    ) -> PyResult<Bound<'py, PyArray2<f64>>> {
        let rows: Vec<Vec<f64>> =
            self.all.iter().map(|one| one.centres.iter().map(&value).collect()).collect();
        Ok(PyArray2::from_vec2(py, &rows)?)
    }
}

#[pymethods]
impl Solution {
    #[getter]
    fn centres(&self) -> Vec<String> {
        self.network.centres().iter().map(|centre| centre.name.clone()).collect()
    }
    #[getter]
    fn clients<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u32>> {
        PyArray1::from_iter(py, self.all.iter().map(|one| one.clients))
    }
    #[getter]
    fn throughput<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        PyArray1::from_iter(py, self.all.iter().map(|one| one.throughput))
    }
    #[getter]
    fn response<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        PyArray1::from_iter(py, self.all.iter().map(|one| one.response))
    }
    #[getter]
    fn utilisation<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f64>>> {
        self.matrix(py, |centre| centre.utilisation)
    }
    #[getter]
    fn queue<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f64>>> {
        self.matrix(py, |centre| centre.queue)
    }
    #[getter]
    fn residence<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f64>>> {
        self.matrix(py, |centre| centre.residence)
    }
    #[getter]
    fn bottleneck(&self) -> Option<String> {
        let index = self.network.bounds().bottleneck?;
        Some(self.network.centres()[index].name.clone())
    }
    #[getter]
    fn knee(&self) -> Option<f64> {
        self.network.bounds().knee()
    }
}
