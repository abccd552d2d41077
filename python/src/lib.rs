//! Sojourn's trace laboratory for Python: traces as numpy columns, simulated caches with policies
//! that may be written in Python, LRU curves, tuning and queueing models.
//!
//! This crate translates; it decides nothing. What it offers is described in `sojourn/_sojourn.pyi`.
//!
//! | module | concept |
//! |---|---|
//! | [`traces`] | `open`, `Trace`: requests, columns |
//! | [`load`] | `Load`: a trace as a cache sees it |
//! | [`caches`] | `simulate`, `curve`, `tune` |
//! | [`policy`] | a policy written in Python |
//! | [`networks`] | `solve`: closed queueing networks |
//! | [`convert`] | sizes and errors |

mod caches;
mod convert;
mod load;
mod networks;
mod policy;
mod traces;

use pyo3::prelude::*;

#[pymodule]
fn _sojourn(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<traces::Trace>()?;
    module.add_class::<traces::Request>()?;
    module.add_class::<load::Load>()?;
    module.add_class::<caches::Outcome>()?;
    module.add_class::<caches::Curve>()?;
    module.add_class::<caches::Advice>()?;
    module.add_class::<networks::Solution>()?;
    module.add_function(wrap_pyfunction!(traces::open, module)?)?;
    module.add_function(wrap_pyfunction!(caches::simulate, module)?)?;
    module.add_function(wrap_pyfunction!(caches::curve, module)?)?;
    module.add_function(wrap_pyfunction!(caches::tune, module)?)?;
    module.add_function(wrap_pyfunction!(caches::policies, module)?)?;
    module.add_function(wrap_pyfunction!(networks::solve, module)?)?;
    Ok(())
}
