//! QEMU copy-on-write images: what is checked of a file before the library sees it.
//!
//! Source of the format: QEMU's `docs/interop/qcow2.txt`.
//!
//! The library reads whatever lies behind the end of a file as zeroes. So the tables are walked
//! once when a file is opened, which also bounds what a hostile file can ask for: a table is as
//! large as its file at most, and nothing is read twice.

mod header;
mod refcounts;
mod tables;

use self::header::{Qcow2Header, ReadMethod};
use self::tables::Tables;
use crate::convert::{self, Tool};
use crate::driver::{self, ImageDriver, Traits};
use crate::file::read_up_to;
use block::image_lock::LockedFile;
use block::{Device, Error, Result, offload};
use imago::StorageOpenOptions;
use imago::file::File as ImagoFile;
use imago::qcow2::Qcow2;
use imago::{DenyImplicitOpenGate, FormatAccess, FormatCreateBuilder, FormatDriverBuilder};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Opens a qcow2 image.
pub(crate) async fn open(path: &Path, read_only: bool, scratch: &Path) -> Result<Arc<dyn Device>> {
    let owned = path.to_owned();
    let runtime = Handle::current();
    let opened = offload(move || {
        let path = owned.as_path();
        let file = crate::file::open(path, read_only)?;
        let (header, reader) = check(&file, path, read_only)?;
        match reader {
            ReadMethod::Library => {
                let device = open_with_library(file, path, read_only, header, &runtime)?;
                Ok(Ok(Arc::new(device) as Arc<dyn Device>))
            }
            ReadMethod::Convert(why) => Ok(Err(why)),
        }
    })
    .await?;
    match opened {
        Ok(device) => Ok(device),
        Err(_) if read_only => convert::with_tool(path, Tool::Qcow2, scratch).await,
        Err(why) => Err(Error::unsupported(format!(
            "{}: has {why}, which can only be read; open it read-only, or convert it with \
             qemu-img convert -O qcow2",
            path.display()
        ))),
    }
}

/// Creates a qcow2 image without data.
pub(crate) async fn create(path: &Path, size: u64, mode: u32) -> Result<Arc<dyn Device>> {
    let path = path.to_owned();
    let runtime = Handle::current();
    offload(move || {
        crate::file::create(&path, mode, |file| {
            let made = driver::guard(&path, || {
                runtime.block_on(async {
                    let file = file.try_clone()?;
                    let file = ImagoFile::from_open_file(file, options(&path, false))?;
                    let gate = DenyImplicitOpenGate::default();
                    Qcow2::<ImagoFile>::create_builder(file)
                        .size(size)
                        .create_open(gate, |image| Ok(Qcow2::builder(image).backing(None)))
                        .await
                })
            });
            let image = made?.map_err(|e| driver::error(&path, e))?;
            let traits = Traits { read_only: false, unit: 64 << 10, zero_marks: true };
            let device = ImageDriver::new(FormatAccess::new(image), file, &path, traits);
            Ok(Arc::new(device) as Arc<dyn Device>)
        })
    })
    .await
}

fn options(path: &Path, read_only: bool) -> StorageOpenOptions {
    StorageOpenOptions::new().write(!read_only).filename(path)
}

fn open_with_library(
    file: LockedFile,
    path: &Path,
    read_only: bool,
    header: Qcow2Header,
    runtime: &Handle,
) -> Result<ImageDriver> {
    let image = driver::guard(path, || {
        runtime.block_on(async {
            let file = ImagoFile::from_open_file(file.try_clone()?, options(path, read_only))?;
            Qcow2::<ImagoFile>::builder(file)
                .write(!read_only)
                .open(DenyImplicitOpenGate::default())
                .await
        })
    })?
    .map_err(|e| driver::error(path, e))?;
    let traits =
        Traits { read_only, unit: 1 << header.cluster_bits, zero_marks: header.version >= 3 };
    Ok(ImageDriver::new(FormatAccess::new(image), file, path, traits))
}

/// Checks the header and walks the tables; for writing, the reference counts too.
fn check(file: &File, path: &Path, read_only: bool) -> Result<(Qcow2Header, ReadMethod)> {
    let len = crate::file::len(file, path)?;
    let bytes = read_up_to(file, path, 0, 104)?;
    let (header, reader) = header::parse(&bytes).map_err(|e| e.context(path.display()))?;
    let tables = Tables { file, path, len, header };
    if read_only {
        tables.walk(&mut |_, _, _| Ok(()))?;
    } else {
        refcounts::check(&tables)?;
    }
    Ok((header, reader))
}
