//! Simulated caches.

use crate::convert::{Several, Size, raise};
use crate::load::Load;
use crate::policy::PythonCache;
use ::simulate::{ReferenceStream, SimulatedPolicy, TuningQuestion, drive, run_sizes};
use block::{ByteSize, Error};
use cache::PolicyKind;
use numpy::PyArray1;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// What came of a policy and a size.
#[pyclass(frozen, module = "sojourn")]
pub(crate) struct Outcome {
    policy: String,
    size: u64,
    outcome: ::simulate::Outcome,
}

#[pymethods]
impl Outcome {
    #[getter]
    fn policy(&self) -> &str {
        &self.policy
    }
    #[getter]
    fn size(&self) -> u64 {
        self.size
    }
    #[getter]
    fn hits(&self) -> u64 {
        self.outcome.hits
    }
    #[getter]
    fn misses(&self) -> u64 {
        self.outcome.misses
    }
    #[getter]
    fn cold(&self) -> u64 {
        self.outcome.cold
    }
    #[getter]
    fn reads(&self) -> u64 {
        self.outcome.reads
    }
    #[getter]
    fn read_hits(&self) -> u64 {
        self.outcome.read_hits
    }
    #[getter]
    fn hit_ratio(&self) -> f64 {
        self.outcome.hit_ratio()
    }
    #[getter]
    fn hits_by_distance<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        PyArray1::from_slice(py, &self.outcome.hits_by_distance)
    }
    #[getter]
    fn misses_by_distance<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        PyArray1::from_slice(py, &self.outcome.misses_by_distance)
    }
    fn __repr__(&self) -> String {
        format!(
            "<sojourn.Outcome {} {}: {:.2} % of {} hit>",
            self.policy,
            ByteSize(self.size),
            self.outcome.hit_ratio() * 100.0,
            self.outcome.hits + self.outcome.misses
        )
    }
}

/// A policy by name, or a class of Python's.
pub(crate) enum Chosen<'py> {
    Name(String),
    Own(Bound<'py, PyAny>),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Chosen<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(object.extract().map_or_else(|_| Self::Own(object.to_owned()), Self::Name))
    }
}

/// Names of all policies.
#[pyfunction]
pub(crate) fn policies() -> Vec<String> {
    let mut names: Vec<String> =
        PolicyKind::all().iter().map(|kind| kind.as_str().to_owned()).collect();
    names.push("opt".to_owned());
    names
}

/// Simulates policies at sizes.
#[pyfunction]
#[pyo3(signature = (load, policy, size, *, distances=false))]
pub(crate) fn simulate<'py>(
    py: Python<'py>,
    load: &Load,
    policy: Several<Chosen<'py>>,
    size: Several<Size>,
    distances: bool,
) -> PyResult<Vec<Outcome>> {
    let sizes: Vec<u64> = size.0.into_iter().map(|size| size.0).collect();
    let rooms = sizes.iter().map(|size| load.room(*size).map_err(raise));
    let rooms = rooms.collect::<PyResult<Vec<u32>>>()?;
    let mut all = Vec::new();
    for chosen in policy.0 {
        let (policy, outcomes) = match &chosen {
            Chosen::Name(name) => {
                let policy: SimulatedPolicy = name.parse().map_err(raise)?;
                let run = || run_sizes(policy, &rooms, &load.stream, distances);
                (policy.to_string(), py.detach(run))
            }
            Chosen::Own(make) => {
                let run = |room: &u32| own(make, *room, &load.stream, distances);
                (name_of(make)?, rooms.iter().map(run).collect::<PyResult<_>>()?)
            }
        };
        py.check_signals()?;
        let outcomes = sizes.iter().zip(outcomes);
        all.extend(outcomes.map(|(size, outcome)| {
            let policy = policy.clone();
            Outcome { policy, size: *size, outcome }
        }));
    }
    Ok(all)
}

fn name_of(make: &Bound<'_, PyAny>) -> PyResult<String> {
    if !make.is_callable() {
        return Err(PyTypeError::new_err(
            "a policy is a name or something that makes a policy when called with a number of blocks",
        ));
    }
    match make.getattr("__name__") {
        Ok(name) => name.extract(),
        Err(_) => Ok(make.repr()?.to_string()),
    }
}

fn own(
    make: &Bound<'_, PyAny>,
    room: u32,
    stream: &ReferenceStream,
    distances: bool,
) -> PyResult<::simulate::Outcome> {
    let mut cache = PythonCache::new(make, room, stream.blocks())?;
    let mut failed = None;
    let outcome = drive(stream, distances, |id| {
        if failed.is_some() {
            return false;
        }
        cache.access(id).unwrap_or_else(|error| {
            failed = Some(error);
            false
        })
    });
    failed.map_or(Ok(outcome), Err)
}

/// LRU at all sizes.
#[pyclass(frozen, module = "sojourn")]
pub(crate) struct Curve {
    curve: ::simulate::Curve,
    block: u32,
}

/// Computes LRU's curve.
#[pyfunction]
pub(crate) fn curve(py: Python<'_>, load: &Load) -> Curve {
    let curve = py.detach(|| ::simulate::Curve::of(&load.stream));
    Curve { curve, block: load.stream.block }
}

#[pymethods]
impl Curve {
    #[getter]
    fn references(&self) -> u64 {
        self.curve.references
    }

    /// The size in bytes from which on nothing more is gained.
    #[getter]
    fn full(&self) -> u64 {
        u64::from(self.curve.blocks) * u64::from(self.curve.one_in) * u64::from(self.block)
    }

    /// The hit ratios at sizes.
    fn hit_ratios<'py>(&self, py: Python<'py>, sizes: Several<Size>) -> Bound<'py, PyArray1<f64>> {
        let sizes = sizes.0.into_iter();
        let sizes: Vec<u64> = sizes.map(|size| size.0 / u64::from(self.block)).collect();
        PyArray1::from_vec(py, self.curve.hit_ratios(&sizes))
    }
}

/// The answer of `tune`.
#[pyclass(frozen, module = "sojourn")]
pub(crate) struct Advice {
    advice: ::simulate::Advice,
}

/// Chooses a policy by miniature simulation.
#[pyfunction]
#[pyo3(signature = (load, size, *, policy=None, one_in=64, samples=4))]
pub(crate) fn tune(
    py: Python<'_>,
    load: &Load,
    size: Size,
    policy: Option<Several<String>>,
    one_in: u32,
    samples: u32,
) -> PyResult<Advice> {
    let answer = || -> block::Result<::simulate::Advice> {
        if one_in == 0 || samples == 0 {
            return Err(Error::invalid("one_in and samples are 1 or more"));
        }
        let room = load.room(size.0)?;
        let mut question = TuningQuestion { one_in, samples, ..TuningQuestion::new(room) };
        if let Some(policies) = policy {
            question.policies =
                policies.0.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
        }
        ::simulate::tune(&load.stream, &question)
    };
    Ok(Advice { advice: py.detach(answer).map_err(raise)? })
}

#[pymethods]
impl Advice {
    /// The best policy, as the configuration of a server spells it.
    #[getter]
    fn policy(&self) -> String {
        self.advice.best().policy.to_string()
    }
    #[getter]
    fn hit_ratio(&self) -> f64 {
        self.advice.best().hit_ratio
    }
    #[getter]
    fn error(&self) -> f64 {
        self.advice.best().error
    }
    #[getter]
    fn saved(&self) -> f64 {
        self.advice.saved()
    }
    /// All candidates, the best first: policy, hit ratio, half of the interval that holds it with 95 %.
    #[getter]
    fn candidates(&self) -> Vec<(String, f64, f64)> {
        let all = self.advice.candidates.iter();
        all.map(|c| (c.policy.to_string(), c.hit_ratio, c.error)).collect()
    }
    fn __repr__(&self) -> String {
        format!(
            "<sojourn.Advice {}: {:.2} % of LRU's misses saved>",
            self.policy(),
            self.advice.saved() * 100.0
        )
    }
}
