//! iPXE scripts, one for each thing that a machine may be told to do.
//!
//! Made for iPXE of 2019, which Debian 12 has. A script runs with whatever it says, so nothing goes
//! into one unchecked: [`word`] lets through what iPXE takes as it stands.

use crate::identity::Claim;
use block::{Error, Result};
use std::fmt::Write;
use std::net::SocketAddr;

/// Seconds until a machine that waits asks again.
const PAUSE: u32 = 10;
/// How often it does before it starts anew, and looks for a server again.
const TIMES: usize = 6;

/// What iPXE is to do on a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Script {
    /// Nobody said yet what the machine is to have: say who it is and what to type, and ask again.
    Wait,
    /// Say what is wrong, and ask again.
    Trouble(String),
    /// Start the firmware's next choice: the machine's own disk.
    Local,
    /// Start the boot loader of a disk over iSCSI.
    Sanboot(Sanboot),
    /// Start a kernel whose root is a disk over NBD.
    Kernel(KernelBoot),
}

/// A disk over iSCSI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sanboot {
    /// The disk's name, for the screen.
    pub disk: String,
    /// Where the target is.
    pub portal: SocketAddr,
    /// The target's name.
    pub target: String,
    /// The name that the machine has as an initiator.
    pub initiator: String,
}

/// A kernel, and what it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelBoot {
    /// The disk's name, for the screen.
    pub disk: String,
    /// Its parameters but for the address.
    pub arguments: Vec<String>,
    /// The name that the machine gets with its address.
    pub host: String,
    /// Whether there is an initial RAM disk.
    pub initrd: bool,
}

/// The address of a machine's script at a server such as `http://10.0.0.1:8067`.
pub fn address(server: &str, machine: &Claim) -> String {
    let mut address = format!("{server}/boot.ipxe?mac={}", machine.mac);
    if let Some(uuid) = machine.uuid {
        let _ = write!(address, "&uuid={uuid}");
    }
    address
}

/// The address of a file of a machine.
fn file_address(server: &str, machine: &Claim, file: &str) -> String {
    let mut address = format!("{server}/machine/{}/{file}", machine.mac);
    if let Some(uuid) = machine.uuid {
        let _ = write!(address, "?uuid={uuid}");
    }
    address
}

/// The script of a machine, whose server is at such an address as `http://10.0.0.1:8067`.
///
/// # Errors
/// [`Unsupported`](block::ErrorKind::Unsupported) when a parameter holds what iPXE would read as its own.
pub fn render(script: &Script, server: &str, machine: &Claim) -> Result<String> {
    let mac = machine.mac;
    let mut text = "#!ipxe\n".to_owned();
    match script {
        Script::Wait => {
            text += "echo\necho This machine is not known to the server yet.\n";
            text += &format!("echo   card   {mac}\n");
            if let Some(uuid) = machine.uuid {
                text += &format!("echo   board  {uuid}\n");
            }
            text += "echo To give it a disk, type on the server:\n";
            text += &format!("echo   sojourn machine assign {mac} --from IMAGE\n");
            text += &again(server, machine);
        }
        Script::Trouble(why) => {
            text += &format!("echo\necho {}\n", said(why));
            text += &again(server, machine);
        }
        Script::Local => {
            // The firmware goes on to its next device: a BIOS in any case, UEFI only when this one has failed.
            text += "echo This machine is to start from its own disk.\n";
            text += "iseq ${platform} efi || exit 0\nexit 1\n";
        }
        Script::Sanboot(san) => {
            let (address, port) = (san.portal.ip(), san.portal.port());
            text += &format!("echo {} starts from disk {} (iSCSI)\n", mac, said(&san.disk));
            text += &format!("set initiator-iqn {}\n", word(&san.initiator)?);
            text += &format!(
                "sanboot iscsi:{address}::{port}:0:{} || goto failed\n",
                word(&san.target)?
            );
            text += &failed(server, machine);
        }
        Script::Kernel(kernel) => {
            text += &format!("echo {} starts from disk {} (NBD)\n", mac, said(&kernel.disk));
            text += &format!("kernel {}", file_address(server, machine, "kernel"));
            if kernel.initrd {
                text += " initrd=initrd";
            }
            for argument in &kernel.arguments {
                text += &format!(" {}", word(argument)?);
            }
            // The address that iPXE has: to ask for another one takes ten seconds.
            text += " ip=${netX/ip}::${netX/gateway}:${netX/netmask}";
            text += &format!(
                ":{}::off BOOTIF=01-${{netX/mac:hexhyp}} || goto failed\n",
                word(&kernel.host)?
            );
            if kernel.initrd {
                let address = file_address(server, machine, "initrd");
                text += &format!("initrd --name initrd {address} || goto failed\n");
            }
            text += "boot || goto failed\n";
            text += &failed(server, machine);
        }
    }
    Ok(text)
}

fn failed(server: &str, machine: &Claim) -> String {
    let again = again(server, machine);
    format!(":failed\necho That failed; the server's log may say why.\n{again}")
}

fn again(server: &str, machine: &Claim) -> String {
    let pause = format!("echo It asks again in {PAUSE} seconds.\nsleep {PAUSE}\n");
    let ask = format!("{pause}chain --replace {}", address(server, machine));
    let no_answer = " || echo The server gave no script.\n";
    (1..TIMES).map(|_| ask.clone() + no_answer).collect::<String>() + &ask + " || reboot\n"
}

/// A word that iPXE takes as it stands: no space, nothing that it replaces, and not one of its own.
fn word(text: &str) -> Result<&str> {
    let plain =
        text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'\\' | b'\'' | b'"'));
    let own =
        matches!(text, "" | "||" | "&&" | ";") || text.contains("${") || text.starts_with('#');
    if plain && !own {
        return Ok(text);
    }
    Err(Error::unsupported(format!(
        "{text:?} cannot stand in an iPXE script; start this disk by iSCSI, or give other parameters"
    )))
}

/// Text for the screen: whatever iPXE might read as its own is a question mark.
fn said(text: &str) -> String {
    let plain = |c: char| match c {
        ' ' | '/' | ':' | '.' | ',' | '-' | '_' | '(' | ')' | '+' | '@' | '=' => c,
        c if c.is_ascii_alphanumeric() => c,
        _ => '?',
    };
    text.chars().take(300).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MacAddress, MachineUuid};
    use proptest::prelude::*;

    const SERVER: &str = "http://10.0.0.1:8067";
    const MACHINE: Claim =
        Claim { mac: MacAddress([0x52, 0x54, 0, 1, 2, 3]), uuid: Some(MachineUuid([0x11; 16])) };

    fn made(script: &Script) -> String {
        render(script, SERVER, &MACHINE).unwrap()
    }

    #[test]
    fn a_waiting_machine_says_who_it_is_what_to_type_and_asks_again() {
        let text = made(&Script::Wait);
        assert!(text.starts_with("#!ipxe\n"));
        assert!(text.contains("sojourn machine assign 52:54:00:01:02:03 --from IMAGE"));
        assert!(text.contains("11111111-1111-1111-1111-111111111111"));
        assert!(text.contains(
            "chain --replace http://10.0.0.1:8067/boot.ipxe?mac=52:54:00:01:02:03&uuid="
        ));
    }

    #[test]
    fn a_machine_of_its_own_disk_fails_under_uefi_which_goes_on_only_then() {
        let text = made(&Script::Local);
        assert!(text.ends_with("\niseq ${platform} efi || exit 0\nexit 1\n"), "{text}");
    }

    #[test]
    fn a_machine_that_got_no_script_asks_a_minute_long_before_it_starts_anew() {
        for script in [Script::Wait, Script::Trouble("no kernel".into())] {
            let text = made(&script);
            let asks: Vec<_> = text.lines().filter(|line| line.starts_with("chain ")).collect();
            let (last, earlier) = asks.split_last().unwrap();
            assert!(last.ends_with(" || reboot"), "{text}");
            assert!(earlier.iter().all(|ask| ask.contains(" || echo ")), "{text}");
            assert_eq!(text.matches(&format!("sleep {PAUSE}\n")).count() as u32 * PAUSE, 60);
        }
    }

    #[test]
    fn a_disk_over_iscsi_is_lun_0_of_its_target() {
        let text = made(&Script::Sanboot(Sanboot {
            disk: "alice".into(),
            portal: "10.0.0.1:3260".parse().unwrap(),
            target: "iqn.2026-11.io.sojourn:alice".into(),
            initiator: "iqn.2026-11.io.sojourn.machine:525400010203".into(),
        }));
        assert!(text.contains(
            "sanboot iscsi:10.0.0.1::3260:0:iqn.2026-11.io.sojourn:alice || goto failed\n"
        ));
    }

    #[test]
    fn a_kernel_gets_its_parameters_and_the_address_of_ipxe() {
        let kernel = KernelBoot {
            disk: "alice".into(),
            arguments: vec!["root=/dev/nbd0p1".into(), "nbdroot=10.0.0.1:10809/alice".into()],
            host: "lab-1".into(),
            initrd: true,
        };
        let text = made(&Script::Kernel(kernel.clone()));
        assert!(text.contains(
            "/kernel?uuid=11111111-1111-1111-1111-111111111111 initrd=initrd root=/dev/nbd0p1 \
             nbdroot=10.0.0.1:10809/alice ip=${netX/ip}::${netX/gateway}:${netX/netmask}:lab-1::off"
        ));
        for hostile in ["a b", "${netX/mac}", "||", "&&", "", "a\nexit", "a\"b", "#x"] {
            let kernel = KernelBoot { arguments: vec![hostile.into()], ..kernel.clone() };
            render(&Script::Kernel(kernel), SERVER, &MACHINE).unwrap_err();
        }
    }

    proptest! {
        #[test]
        fn no_message_gets_out_of_its_line(why in any::<String>()) {
            let text = made(&Script::Trouble(why));
            prop_assert_eq!(text.lines().count(), made(&Script::Trouble(String::new())).lines().count());
            let hostile = text.contains("${") || text.contains("||\n");
            prop_assert!(!hostile);
        }
    }
}
