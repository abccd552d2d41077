//! Traces: files of any format, or columns.

use crate::convert::raise;
use crate::load::{Load, LoadOptions};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use trace::{
    ExportOptions, Flags, Format, Header, Memory, Op, OpenTraceOptions, Source, TraceDisk, export,
    format_of,
};

/// One request, as in `for request in trace`.
#[pyclass(frozen, module = "sojourn", get_all)]
pub(crate) struct Request {
    /// Nanoseconds since the trace's start.
    time: u64,
    /// Index of the client.
    client: u32,
    /// Index of the disk.
    disk: u32,
    /// "read", "write", "flush", "trim" or "zero".
    op: &'static str,
    /// Bytes.
    offset: u64,
    /// Bytes.
    length: u32,
    /// Nanoseconds; 0 when not known.
    latency: u32,
    /// Bits: 1 FUA, 2 failed, 4 late.
    flags: u8,
}

#[pymethods]
impl Request {
    fn __repr__(&self) -> String {
        format!(
            "Request(time={}, client={}, disk={}, op='{}', offset={}, length={}, latency={})",
            self.time, self.client, self.disk, self.op, self.offset, self.length, self.latency
        )
    }
}

/// Where requests come from.
#[derive(Clone)]
enum Origin {
    File(PathBuf, OpenTraceOptions),
    Memory(Arc<(Header, Vec<trace::Request>)>),
}

/// A trace: a file, or columns in memory. See the stubs for its methods.
#[pyclass(frozen, module = "sojourn")]
pub(crate) struct Trace {
    origin: Origin,
    header: Header,
}

/// Opens a trace of any format.
#[pyfunction]
#[pyo3(signature = (path, *, format=None, unit=4096, sort=false, shift=0))]
pub(crate) fn open(
    py: Python<'_>,
    path: PathBuf,
    format: Option<&str>,
    unit: u32,
    sort: bool,
    shift: u64,
) -> PyResult<Trace> {
    let format = format.map(str::parse).transpose().map_err(raise)?;
    let options = OpenTraceOptions { format, unit, sort, shift, ..OpenTraceOptions::default() };
    let origin = Origin::File(path, options);
    let header = py.detach(|| origin.source().map(|source| source.header().clone()));
    Ok(Trace { origin, header: header.map_err(raise)? })
}

impl Origin {
    fn source(&self) -> block::Result<Box<dyn Source + Send>> {
        Ok(match self {
            Self::File(path, options) => trace::open(path, options)?,
            Self::Memory(held) => Box::new(Memory::new(held.0.clone(), held.1.clone())),
        })
    }
}

/// Requests as columns.
#[derive(Default)]
struct Columns {
    time: Vec<u64>,
    client: Vec<u32>,
    disk: Vec<u32>,
    op: Vec<u8>,
    offset: Vec<u64>,
    length: Vec<u32>,
    latency: Vec<u32>,
    flags: Vec<u8>,
}

impl Columns {
    fn extend(&mut self, batch: &[trace::Request]) {
        self.time.extend(batch.iter().map(|r| r.time));
        self.client.extend(batch.iter().map(|r| r.client));
        self.disk.extend(batch.iter().map(|r| r.disk));
        self.op.extend(batch.iter().map(|r| r.op as u8));
        self.offset.extend(batch.iter().map(|r| r.offset));
        self.length.extend(batch.iter().map(|r| r.length));
        self.latency.extend(batch.iter().map(|r| r.latency));
        self.flags.extend(batch.iter().map(|r| r.flags.0));
    }

    fn into_dict(self, py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("time", PyArray1::from_vec(py, self.time))?;
        dict.set_item("client", PyArray1::from_vec(py, self.client))?;
        dict.set_item("disk", PyArray1::from_vec(py, self.disk))?;
        dict.set_item("op", PyArray1::from_vec(py, self.op))?;
        dict.set_item("offset", PyArray1::from_vec(py, self.offset))?;
        dict.set_item("length", PyArray1::from_vec(py, self.length))?;
        dict.set_item("latency", PyArray1::from_vec(py, self.latency))?;
        dict.set_item("flags", PyArray1::from_vec(py, self.flags))?;
        Ok(dict)
    }
}

/// A column that may be left out.
type Column<'py, T> = Option<PyReadonlyArray1<'py, T>>;

fn column<T: numpy::Element + Copy>(
    name: &str,
    given: &Column<'_, T>,
    rows: usize,
) -> PyResult<Option<Vec<T>>> {
    let Some(array) = given else { return Ok(None) };
    let values: Vec<T> = array.as_array().iter().copied().collect();
    if values.len() != rows {
        return Err(PyValueError::new_err(format!(
            "{name} has {} rows and offset has {rows}; all columns need the same number",
            values.len()
        )));
    }
    Ok(Some(values))
}

#[pymethods]
impl Trace {
    /// Makes a trace of columns.
    #[staticmethod]
    #[pyo3(signature = (offset, length, *, op=None, time=None, client=None, disk=None, latency=None))]
    #[allow(clippy::too_many_arguments)]
    fn from_columns(
        offset: PyReadonlyArray1<'_, u64>,
        length: PyReadonlyArray1<'_, u32>,
        op: Column<'_, u8>,
        time: Column<'_, u64>,
        client: Column<'_, u32>,
        disk: Column<'_, u32>,
        latency: Column<'_, u32>,
    ) -> PyResult<Self> {
        let offset: Vec<u64> = offset.as_array().iter().copied().collect();
        let rows = offset.len();
        let length = column("length", &Some(length), rows)?.unwrap_or_default();
        let op = column("op", &op, rows)?;
        let time = column("time", &time, rows)?;
        let client = column("client", &client, rows)?;
        let disk = column("disk", &disk, rows)?;
        let latency = column("latency", &latency, rows)?;
        let mut requests = Vec::with_capacity(rows);
        let mut last = 0;
        for row in 0..rows {
            let at = |column: &Option<Vec<u32>>| column.as_ref().map_or(0, |values| values[row]);
            let code = op.as_ref().map_or(0, |values| values[row]);
            let bad = |what: String| PyValueError::new_err(format!("row {row}: {what}"));
            let request = trace::Request {
                time: time.as_ref().map_or(row as u64, |values| values[row]),
                client: at(&client),
                disk: at(&disk),
                op: Op::from_code(code)
                    .ok_or_else(|| bad(format!("operation {code} is none of 0 to 4")))?,
                offset: offset[row],
                length: length[row],
                latency: at(&latency),
                flags: Flags::NONE,
            };
            if request.time < last {
                return Err(bad("its time is before that of the row above; sort the rows".into()));
            }
            last = request.time;
            let end = request.offset.checked_add(u64::from(request.length));
            if end.is_none_or(|end| end > 1 << 63) {
                return Err(bad("it ends beyond 2^63".into()));
            }
            if request.client.max(request.disk) >= trace::header::MAX_PARTIES {
                return Err(bad("clients and disks are numbers below 2^20".into()));
            }
            requests.push(request);
        }
        let names = |most: Option<u32>| most.map_or(0, |most| most as usize + 1);
        let header = Header {
            clients: vec![String::new(); names(requests.iter().map(|r| r.client).max())],
            disks: vec![TraceDisk::default(); names(requests.iter().map(|r| r.disk).max())],
            requests: Some(rows as u64),
            times: time.is_some(),
            latencies: latency.is_some(),
            ops: op.is_some(),
            ..Header::default()
        };
        let held = Arc::new((header.clone(), requests));
        Ok(Self { origin: Origin::Memory(held), header })
    }

    #[getter]
    fn clients(&self) -> Vec<String> {
        self.header.clients.clone()
    }

    #[getter]
    fn disks(&self) -> Vec<String> {
        self.header.disks.iter().map(|disk| disk.name.clone()).collect()
    }

    #[getter]
    fn requests(&self) -> Option<u64> {
        self.header.requests
    }

    #[getter]
    fn has_times(&self) -> bool {
        self.header.times
    }

    #[getter]
    fn has_latencies(&self) -> bool {
        self.header.latencies
    }

    #[getter]
    fn has_ops(&self) -> bool {
        self.header.ops
    }

    #[getter]
    fn notes(&self) -> &str {
        &self.header.notes
    }

    fn __repr__(&self) -> String {
        let name = match &self.origin {
            Origin::File(path, _) => format!("{:?}", path.display().to_string()),
            Origin::Memory(held) => format!("{} requests in memory", held.1.len()),
        };
        format!("<sojourn.Trace {name}>")
    }

    fn __iter__(&self, py: Python<'_>) -> PyResult<Requests> {
        let source = py.detach(|| self.origin.source()).map_err(raise)?;
        Ok(Requests { source: Mutex::new(source), batch: Vec::new(), next: 0 })
    }

    /// All requests as columns, or the first `limit`.
    #[pyo3(signature = (limit=None))]
    fn columns<'py>(&self, py: Python<'py>, limit: Option<usize>) -> PyResult<Bound<'py, PyDict>> {
        let limit = limit.unwrap_or(usize::MAX);
        let read = || -> block::Result<Columns> {
            let mut source = self.origin.source()?;
            let (mut columns, mut batch) = (Columns::default(), Vec::new());
            while columns.time.len() < limit && source.read(&mut batch)? {
                batch.truncate(limit - columns.time.len());
                columns.extend(&batch);
            }
            Ok(columns)
        };
        py.detach(read).map_err(raise)?.into_dict(py)
    }

    /// The same columns in batches, for traces larger than memory.
    fn batches(&self, py: Python<'_>) -> PyResult<Batches> {
        let source = py.detach(|| self.origin.source()).map_err(raise)?;
        Ok(Batches { source: Mutex::new(source), batch: Vec::new() })
    }

    /// Writes the trace: in the format that the name asks for, else in Sojourn's own.
    #[pyo3(signature = (path, *, format=None, unit=4096))]
    fn save(
        &self,
        py: Python<'_>,
        path: PathBuf,
        format: Option<&str>,
        unit: u32,
    ) -> PyResult<u64> {
        let named = || format_of(&path).unwrap_or(Format::Sojourn);
        let format = format.map(str::parse).transpose().map_err(raise)?.unwrap_or_else(named);
        let options = ExportOptions { format, unit };
        let write = || export(&mut *self.origin.source()?, &path, &options);
        Ok(py.detach(write).map_err(raise)?.records)
    }

    /// The trace as a cache sees it.
    #[pyo3(signature = (*, block=None, writes=false, share="base", client=None, one_in=1))]
    fn load(
        &self,
        py: Python<'_>,
        block: Option<crate::convert::Size>,
        writes: bool,
        share: &str,
        client: Option<&str>,
        one_in: u32,
    ) -> PyResult<Load> {
        let options = LoadOptions { block, writes, share, client, one_in }.check()?;
        let read = || Load::read(&mut *self.origin.source()?, &options);
        py.detach(read).map_err(raise)
    }
}

/// Reads the next batch; `false` at the end. (A source is not `Sync`, as classes of Python have to be.)
fn next(
    py: Python<'_>,
    source: &mut Mutex<Box<dyn Source + Send>>,
    batch: &mut Vec<trace::Request>,
) -> PyResult<bool> {
    let source = source.get_mut().unwrap_or_else(PoisonError::into_inner);
    py.detach(|| source.read(batch)).map_err(raise)
}

/// Requests one by one.
#[pyclass(module = "sojourn")]
pub(crate) struct Requests {
    source: Mutex<Box<dyn Source + Send>>,
    batch: Vec<trace::Request>,
    next: usize,
}

#[pymethods]
impl Requests {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<Request>> {
        if self.next == self.batch.len() {
            self.next = 0;
            if !next(py, &mut self.source, &mut self.batch)? {
                return Ok(None);
            }
        }
        let request = self.batch[self.next];
        self.next += 1;
        Ok(Some(Request {
            time: request.time,
            client: request.client,
            disk: request.disk,
            op: request.op.as_str(),
            offset: request.offset,
            length: request.length,
            latency: request.latency,
            flags: request.flags.0,
        }))
    }
}

/// Columns batch by batch.
#[pyclass(module = "sojourn")]
pub(crate) struct Batches {
    source: Mutex<Box<dyn Source + Send>>,
    batch: Vec<trace::Request>,
}

#[pymethods]
impl Batches {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        if !next(py, &mut self.source, &mut self.batch)? {
            return Ok(None);
        }
        let mut columns = Columns::default();
        columns.extend(&self.batch);
        columns.into_dict(py).map(Some)
    }
}
