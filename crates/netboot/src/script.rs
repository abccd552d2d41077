//! iPXE scripts, one for each thing that a machine may be told to do.
//!
//! Made for iPXE of 2019, which Debian 12 has. A script runs with whatever it says, so nothing goes
//! into one unchecked: [`word`] lets through what iPXE takes as it stands.

use crate::identity::BootRequest;
use block::{Error, Result};
use std::fmt::Write;
use std::net::SocketAddr;

/// Seconds until a machine that waits asks again.
const PAUSE: u32 = 10;
/// How often it does before it starts anew, and looks for a server again.
const TIMES: usize = 6;
/// Seconds that a screen is read before a form takes its place; also behind a secret that was wrong.
const WRONG: u32 = 3;
/// The longest choice or secret that is sent back, in bytes.
const LONGEST_WORD: usize = 256;

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
    /// Let somebody choose.
    Menu(Menu),
    /// Ask for the machine's secret, unless its iPXE has it in `secret`.
    Secret {
        /// The one that came was not it.
        is_wrong: bool,
    },
}

/// What a machine may start; the first item when nobody chooses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Menu {
    /// The machine's name, for the screen.
    pub machine: String,
    /// How long it waits for somebody, in seconds.
    pub seconds: u32,
    /// What there is, at least one.
    pub items: Vec<MenuItem>,
}

/// A line of a menu.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MenuItem {
    /// What comes back when it is chosen ([`BootRequest::choice`]).
    pub choice: String,
    /// What the screen shows.
    pub label: String,
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
    /// The server wants a secret by CHAP: iPXE asks for it, unless it has one.
    pub asks_for_secret: bool,
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
pub fn address(server: &str, request: &BootRequest) -> String {
    let mut address = format!("{server}/boot.ipxe?mac={}", request.machine.mac);
    push_query(&mut address, '&', &[("uuid", uuid(request)), ("secret", request.secret.clone())]);
    address
}

/// The address of a file of a machine.
fn file_address(server: &str, request: &BootRequest, file: &str) -> String {
    let mut address = format!("{server}/machine/{}/{file}", request.machine.mac);
    let (choice, secret) = (request.choice.clone(), request.secret.clone());
    push_query(
        &mut address,
        '?',
        &[("uuid", uuid(request)), ("choice", choice), ("secret", secret)],
    );
    address
}

fn uuid(request: &BootRequest) -> Option<String> {
    request.machine.uuid.map(|uuid| uuid.to_string())
}

/// Adds what a machine said, as far as it needs no escapes: nothing else is ever right.
fn push_query(address: &mut String, first: char, pairs: &[(&str, Option<String>)]) {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
    let mut separator = first;
    for (name, value) in pairs {
        let is_plain = |value: &&String| value.len() <= LONGEST_WORD && value.bytes().all(plain);
        if let Some(value) = value.as_ref().filter(is_plain) {
            let _ = write!(address, "{separator}{name}={value}");
            separator = '&';
        }
    }
}

/// The script of a machine, whose server is at such an address as `http://10.0.0.1:8067`.
///
/// # Errors
/// [`Unsupported`](block::ErrorKind::Unsupported) when a parameter holds what iPXE would read as its own.
pub fn render(script: &Script, server: &str, request: &BootRequest) -> Result<String> {
    let mac = request.machine.mac;
    let mut text = "#!ipxe\n".to_owned();
    match script {
        Script::Wait => {
            text += "echo\necho This machine is not known to the server yet.\n";
            text += &format!("echo   card   {mac}\n");
            if let Some(uuid) = request.machine.uuid {
                text += &format!("echo   board  {uuid}\n");
            }
            text += "echo To give it a disk, type on the server:\n";
            text += &format!("echo   sojourn machine assign {mac} --from IMAGE\n");
            text += &again(server, request);
        }
        Script::Trouble(why) => {
            text += &format!("echo\necho {}\n", said(why));
            text += &again(server, request);
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
            if san.asks_for_secret {
                text += "isset ${username} || login || goto failed\n";
            }
            text += &format!(
                "sanboot iscsi:{address}::{port}:0:{} || goto failed\n",
                word(&san.target)?
            );
            text += &failed(server, request);
        }
        Script::Kernel(kernel) => {
            text += &format!("echo {} starts from disk {} (NBD)\n", mac, said(&kernel.disk));
            text += &format!("kernel {}", file_address(server, request, "kernel"));
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
                let address = file_address(server, request, "initrd");
                text += &format!("initrd --name initrd {address} || goto failed\n");
            }
            text += "boot || goto failed\n";
            text += &failed(server, request);
        }
        Script::Menu(menu) => text += &render_menu(menu, server, request)?,
        Script::Secret { is_wrong } => text += &ask_for_secret(*is_wrong, server, request),
    }
    Ok(text)
}

fn render_menu(menu: &Menu, server: &str, request: &BootRequest) -> Result<String> {
    let mut text = format!(":menu\nmenu {}, {}\n", said(&menu.machine), request.machine.mac);
    for item in &menu.items {
        text += &format!("item {} {}\n", word(&item.choice)?, said(&item.label));
    }
    text += "item shell The shell of iPXE\n";
    let first = menu.items.first().map_or("shell", |item| &item.choice);
    let milliseconds = u64::from(menu.seconds) * 1000;
    text += &format!(
        "choose --default {first} --timeout {milliseconds} choice || set choice {first}\n"
    );
    text += "iseq ${choice} shell || goto chosen\nshell ||\ngoto menu\n:chosen\n";
    text += &format!(
        "chain --replace {}&choice=${{choice}} || goto failed\n",
        address(server, request)
    );
    Ok(text + &failed(server, request))
}

fn ask_for_secret(is_wrong: bool, server: &str, request: &BootRequest) -> String {
    let ask = address(server, &BootRequest { secret: None, ..request.clone() });
    let ask = format!("chain --replace {ask}&secret=${{secret:uristring}}");
    let mut text = match is_wrong {
        true => "echo\necho That is not the secret of this machine.\n".to_owned(),
        false => format!(
            "isset ${{secret}} && {ask} ||\necho\necho This machine starts with its secret.\n"
        ),
    };
    text += &format!("echo   card   {}\n", request.machine.mac);
    // The form that asks clears the screen. Who types the secret as the name means it, too.
    text += &format!("echo Leave the name empty.\nsleep {WRONG}\n:ask\nlogin || goto ask\n");
    text += "set secret ${password}\nisset ${secret} || set secret ${username}\n";
    text += "clear username\nclear password\n";
    text + &ask + " || goto ask\n"
}

fn failed(server: &str, request: &BootRequest) -> String {
    let again = again(server, request);
    format!(":failed\necho That failed; the server's log may say why.\n{again}")
}

fn again(server: &str, request: &BootRequest) -> String {
    let pause = format!("echo It asks again in {PAUSE} seconds.\nsleep {PAUSE}\n");
    let ask = format!("{pause}chain --replace {}", address(server, request));
    let no_answer = " || echo The server gave no script.\n";
    (1..TIMES).map(|_| ask.clone() + no_answer).collect::<String>() + &ask + " || reboot\n"
}

/// A word that iPXE takes as it stands: no space, nothing that it replaces, and not one of its own.
pub(crate) fn word(text: &str) -> Result<&str> {
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
    use crate::identity::Claim;
    use crate::{MacAddress, MachineUuid};
    use proptest::prelude::*;

    const SERVER: &str = "http://10.0.0.1:8067";
    const MACHINE: Claim =
        Claim { mac: MacAddress([0x52, 0x54, 0, 1, 2, 3]), uuid: Some(MachineUuid([0x11; 16])) };

    fn request(choice: Option<&str>, secret: Option<&str>) -> BootRequest {
        let text = |text: Option<&str>| text.map(str::to_owned);
        BootRequest { machine: MACHINE, choice: text(choice), secret: text(secret) }
    }

    fn made(script: &Script) -> String {
        render(script, SERVER, &request(None, None)).unwrap()
    }

    #[test]
    fn a_menu_starts_its_first_item_when_nobody_chooses() {
        let item =
            |choice: &str, label: &str| MenuItem { choice: choice.into(), label: label.into() };
        let items = vec![item("disk", "disk alice ${x}"), item("image:debian:12", "debian:12")];
        let menu = Menu { machine: "lab-1".into(), seconds: 7, items };
        let text = made(&Script::Menu(menu));
        assert!(text.contains("\nmenu lab-1, 52:54:00:01:02:03\nitem disk disk alice ??x?\nitem image:debian:12 debian:12\n"), "{text}");
        assert!(text.contains("choose --default disk --timeout 7000 choice || set choice disk\n"));
        assert!(text.contains("&choice=${choice} || goto failed\n"));
    }

    #[test]
    fn a_machine_with_a_secret_gives_it_or_asks_for_it_and_files_come_with_it() {
        let text = made(&Script::Secret { is_wrong: false });
        let ask = "&secret=${secret:uristring}";
        assert!(
            text.contains("isset ${secret} && chain --replace ") && text.contains(ask),
            "{text}"
        );
        let wrong = render(&Script::Secret { is_wrong: true }, SERVER, &request(None, Some("x y")))
            .unwrap();
        assert!(
            !wrong.contains("isset ${secret} &&")
                && !wrong.contains("x y")
                && wrong.contains("login"),
            "{wrong}"
        );
        let address =
            file_address(SERVER, &request(Some("image:debian:12"), Some("k3-x")), "kernel");
        assert!(address.ends_with(
            "?uuid=11111111-1111-1111-1111-111111111111&choice=image:debian:12&secret=k3-x"
        ));
        let hostile = request(Some("a&b"), Some("c\nboot"));
        assert!(!file_address(SERVER, &hostile, "kernel").contains(['\n', '&']));
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
            asks_for_secret: false,
        }));
        assert!(!text.contains("login"));
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
            render(&Script::Kernel(kernel), SERVER, &request(None, None)).unwrap_err();
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
