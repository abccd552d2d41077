//! What a network boot server under test knows of machines: every one is its own, and what each starts is made of
//! what it says of itself.

use async_trait::async_trait;
use block::{Error, Result};
use bytes::Bytes;
use netboot::identity::Claim;
use netboot::kernel::BootFile;
use netboot::script::{KernelBoot, Menu, MenuItem, Sanboot, Script};
use netboot::{BootDecision, BootRequest, Machines};

/// Every machine is ours, but for those whose card ends with 0xff.
pub struct Everyone;

/// A machine's board, or its card, as a name: any bytes that it likes.
fn name(machine: &Claim) -> String {
    let bytes = machine.uuid.map_or_else(|| machine.mac.0.to_vec(), |board| board.0.to_vec());
    String::from_utf8_lossy(&bytes).into_owned()
}

#[async_trait]
impl Machines for Everyone {
    fn judge(&self, machine: &Claim) -> BootDecision {
        match machine.mac.0[5] {
            0xff => BootDecision::Ignore,
            _ => BootDecision::Boot,
        }
    }

    async fn script(&self, request: &BootRequest) -> Option<Script> {
        let name = name(&request.machine);
        Some(match request.machine.mac.0[5] {
            0 => Script::Wait,
            1 => Script::Local,
            2 => Script::Sanboot(Sanboot {
                disk: name.clone(),
                portal: ([10, 0, 0, 1], 3260).into(),
                target: name.clone(),
                initiator: name,
                asks_for_secret: true,
            }),
            3 => Script::Kernel(KernelBoot {
                disk: name.clone(),
                arguments: vec![name.clone(), name.clone()],
                host: name,
                initrd: true,
            }),
            4 => Script::Menu(Menu {
                machine: name.clone(),
                seconds: 10,
                items: vec![MenuItem { choice: name.clone(), label: name }],
            }),
            5 => Script::Secret { is_wrong: request.secret.is_some() },
            0xff => return None,
            _ => Script::Trouble(name),
        })
    }

    async fn length(&self, request: &BootRequest, which: BootFile) -> Result<u64> {
        Ok(self.file(request, which).await?.len() as u64)
    }

    async fn file(&self, request: &BootRequest, which: BootFile) -> Result<Bytes> {
        match (request.machine.mac.0[5], which) {
            (0xff, _) => Err(Error::not_found("none")),
            (size, BootFile::Kernel) => Ok(vec![1; usize::from(size) << 12].into()),
            (size, BootFile::Initrd) => Ok(vec![2; usize::from(size)].into()),
        }
    }
}
