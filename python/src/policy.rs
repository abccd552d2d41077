//! A replacement policy written in Python.
//!
//! It is an object with three methods: `hit(block)`, `insert(block)` and `evict()`, which returns
//! the block that leaves. What is held is kept here, so that a faulty policy is found out.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;

/// A cache of `room` blocks whose policy is a Python object.
pub(crate) struct PythonCache<'py> {
    hit: Bound<'py, PyAny>,
    insert: Bound<'py, PyAny>,
    evict: Bound<'py, PyAny>,
    held: Vec<bool>,
    len: u32,
    room: u32,
}

impl<'py> PythonCache<'py> {
    /// Makes a policy by calling `make` with the cache's room, in blocks.
    pub(crate) fn new(make: &Bound<'py, PyAny>, room: u32, blocks: u32) -> PyResult<Self> {
        let policy = make.call1((room,))?;
        let method = |name: &str| -> PyResult<Bound<'py, PyAny>> {
            policy.getattr(name).map_err(|_| {
                PyTypeError::new_err(format!(
                    "a policy needs hit(block), insert(block) and evict(); {} has no {name}",
                    policy.get_type().name().map_or("it".to_owned(), |name| name.to_string())
                ))
            })
        };
        Ok(Self {
            hit: method("hit")?,
            insert: method("insert")?,
            evict: method("evict")?,
            held: vec![false; blocks as usize],
            len: 0,
            room,
        })
    }

    /// A reference; whether it was a hit.
    pub(crate) fn access(&mut self, id: u32) -> PyResult<bool> {
        if self.held[id as usize] {
            self.hit.call1((id,))?;
            return Ok(true);
        }
        if self.len >= self.room {
            let gone = self.evict.call0()?;
            let held = gone.extract::<u32>().ok().and_then(|gone| self.held.get_mut(gone as usize));
            match held {
                Some(held) if *held => *held = false,
                _ => {
                    return Err(PyValueError::new_err(format!(
                        "evict() returned {}, which is not in the cache",
                        gone.repr().unwrap_or_else(|_| PyString::new(gone.py(), "something"))
                    )));
                }
            }
            self.len -= 1;
        }
        self.insert.call1((id,))?;
        self.held[id as usize] = true;
        self.len += 1;
        Ok(false)
    }
}
