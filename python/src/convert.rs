//! Sizes as people write them, and errors as Python has them.

use block::{ByteSize, Error, ErrorKind};
use pyo3::exceptions::{
    PyFileNotFoundError, PyNotImplementedError, PyOSError, PyPermissionError, PyRuntimeError,
    PyValueError,
};
use pyo3::prelude::*;
use pyo3::types::PyString;

/// Our error as the exception that a caller in Python would expect.
pub(crate) fn raise(error: Error) -> PyErr {
    let message = error.message().to_owned();
    match error.kind() {
        ErrorKind::Invalid | ErrorKind::Corrupt => PyValueError::new_err(message),
        ErrorKind::NotFound => PyFileNotFoundError::new_err(message),
        ErrorKind::Denied => PyPermissionError::new_err(message),
        ErrorKind::Unavailable | ErrorKind::NoSpace => PyOSError::new_err(message),
        ErrorKind::Unsupported => PyNotImplementedError::new_err(message),
        _ => PyRuntimeError::new_err(message),
    }
}

/// Bytes: a number, or text such as `64KiB`.
#[derive(Clone, Copy)]
pub(crate) struct Size(pub(crate) u64);

impl<'a, 'py> FromPyObject<'a, 'py> for Size {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = object.extract::<String>() {
            return Ok(Self(text.parse::<ByteSize>().map_err(raise)?.0));
        }
        object.extract::<u64>().map(Self)
    }
}

/// One of something, or several of it.
pub(crate) struct Several<T>(pub(crate) Vec<T>);

impl<'a, 'py, T> FromPyObject<'a, 'py> for Several<T>
where
    T: for<'b> FromPyObject<'b, 'py, Error = PyErr>,
{
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        // Text is one, although it can be walked through.
        match object.try_iter() {
            Ok(items) if !object.is_instance_of::<PyString>() => {
                items.map(|item| T::extract(item?.as_borrowed())).collect::<PyResult<_>>().map(Self)
            }
            _ => T::extract(object).map(|one| Self(vec![one])),
        }
    }
}
