//! What boot loaders would start, out of their configuration.

use std::cmp::Ordering;

/// The longest configuration that is read, in bytes.
pub const LONGEST: u64 = 1 << 20;
/// The most initial RAM disks of one entry.
const MOST_INITRDS: usize = 8;

/// A kernel and what goes with it; paths are of the file system that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootEntry {
    /// The kernel.
    pub kernel: String,
    /// Initial RAM disks, in order.
    pub initrds: Vec<String>,
    /// The kernel's parameters.
    pub arguments: Vec<String>,
}

/// An entry of the Boot Loader Specification (UAPI.1, type 1) and its version; `None` when it names no
/// kernel.
pub fn of_specification(name: &str, text: &str) -> Option<(String, BootEntry)> {
    let mut entry = BootEntry { kernel: String::new(), initrds: Vec::new(), arguments: Vec::new() };
    let mut version = name.trim_end_matches(".conf").to_owned();
    for line in text.lines() {
        let Some((key, value)) = line.trim().split_once(char::is_whitespace) else { continue };
        let value = value.trim();
        match key {
            "linux" => entry.kernel = value.to_owned(),
            "initrd" => entry.initrds.extend(paths(value)),
            "options" => entry.arguments.extend(arguments(value)),
            "version" => version = value.to_owned(),
            _ => {}
        }
    }
    entry.is_plain().then_some((version, entry))
}

/// The first entry of GRUB's configuration; `None` when it is not written out there.
pub fn of_grub(text: &str) -> Option<BootEntry> {
    let mut entry: Option<BootEntry> = None;
    for line in text.lines() {
        let Some((command, rest)) = line.trim().split_once(char::is_whitespace) else { continue };
        match (command, &mut entry) {
            ("linux" | "linux16" | "linuxefi", None) => {
                let mut words = words(rest);
                let kernel = words.next()?;
                let arguments = words.filter(|word| !word.contains('$')).collect();
                entry = Some(BootEntry { kernel, initrds: Vec::new(), arguments });
            }
            ("initrd" | "initrd16" | "initrdefi", Some(entry)) => {
                entry.initrds.extend(paths(rest));
                break;
            }
            ("menuentry" | "submenu" | "linux" | "linux16" | "linuxefi", Some(_)) => break,
            _ => {}
        }
    }
    entry.filter(BootEntry::is_plain)
}

/// The parameters of a command line that is handed on as it stands.
pub fn of_command_line(text: &str) -> Vec<String> {
    text.split_whitespace().map(|word| word.replace(['"', '\''], "")).collect()
}

/// The newest kernel of a directory, by the names that Debian, Fedora and others use.
pub fn of_names(directory: &str, names: &[String]) -> Option<BootEntry> {
    let versions = names.iter().filter_map(|name| name.strip_prefix("vmlinuz-"));
    let version =
        versions.filter(|version| !version.contains("rescue")).max_by(|a, b| by_version(a, b))?;
    let candidates = [
        format!("initrd.img-{version}"),
        format!("initramfs-{version}.img"),
        format!("initrd-{version}"),
        format!("initrd-{version}.img"),
        format!("initramfs-{version}"),
    ];
    let initrd = candidates.into_iter().find(|name| names.contains(name));
    Some(BootEntry {
        kernel: format!("{directory}/vmlinuz-{version}"),
        initrds: initrd.into_iter().map(|name| format!("{directory}/{name}")).collect(),
        arguments: Vec::new(),
    })
}

impl BootEntry {
    /// Whether its paths are written out, and not computed by the boot loader.
    fn is_plain(&self) -> bool {
        let plain = |path: &String| path.starts_with('/') && !path.contains(['$', '\\', '(']);
        plain(&self.kernel) && self.initrds.iter().all(plain) && self.initrds.len() <= MOST_INITRDS
    }
}

fn paths(text: &str) -> impl Iterator<Item = String> + '_ {
    words(text)
}

fn arguments(text: &str) -> impl Iterator<Item = String> + '_ {
    words(text).filter(|word| !word.contains('$'))
}

/// Words without their quotation marks.
fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    let text = text.split(" #").next().unwrap_or_default();
    text.split_whitespace().map(|word| word.replace(['"', '\''], ""))
}

/// Versions as people order them: numbers by value, what is between them by letters; a `~` goes before
/// everything, even the end.
pub fn by_version(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    loop {
        let (text_a, rest_a) = split(a, |byte| !byte.is_ascii_digit());
        let (text_b, rest_b) = split(b, |byte| !byte.is_ascii_digit());
        let rank = |byte: Option<&u8>| match byte {
            Some(b'~') => -1,
            None => 0,
            Some(byte) if byte.is_ascii_alphabetic() => i32::from(*byte),
            Some(byte) => i32::from(*byte) + 256,
        };
        for at in 0..text_a.len().max(text_b.len()) {
            match rank(text_a.get(at)).cmp(&rank(text_b.get(at))) {
                Ordering::Equal => {}
                other => return other,
            }
        }
        let (number_a, next_a) = split(rest_a, u8::is_ascii_digit);
        let (number_b, next_b) = split(rest_b, u8::is_ascii_digit);
        let (number_a, number_b) = (value(number_a), value(number_b));
        match number_a.len().cmp(&number_b.len()).then(number_a.cmp(number_b)) {
            Ordering::Equal if next_a.is_empty() && next_b.is_empty() => return Ordering::Equal,
            Ordering::Equal => (a, b) = (next_a, next_b),
            other => return other,
        }
    }
}

fn split(bytes: &[u8], belongs: impl Fn(&u8) -> bool) -> (&[u8], &[u8]) {
    bytes.split_at(bytes.iter().take_while(|byte| belongs(byte)).count())
}

/// A number without its leading zeroes.
fn value(digits: &[u8]) -> &[u8] {
    &digits[digits.iter().take_while(|digit| **digit == b'0').count()..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn grub_starts_its_first_entry() {
        let text = "set timeout=5\nmenuentry 'Debian GNU/Linux' --class debian {\n\tinsmod ext2\n\
            \tlinux\t/boot/vmlinuz-6.1.0-9-amd64 root=UUID=ab ro  quiet $vt_handoff\n\
            \tinitrd\t/boot/initrd.img-6.1.0-9-amd64\n}\n\
            menuentry 'old' {\n\tlinux /boot/vmlinuz-5 root=UUID=ab\n\tinitrd /boot/initrd.img-5\n}\n";
        let entry = of_grub(text).unwrap();
        assert_eq!(entry.kernel, "/boot/vmlinuz-6.1.0-9-amd64");
        assert_eq!(entry.initrds, ["/boot/initrd.img-6.1.0-9-amd64"]);
        assert_eq!(entry.arguments, ["root=UUID=ab", "ro", "quiet"]);
        assert_eq!(of_grub("menuentry 'x' {\n linux ($root)/vmlinuz\n}"), None);
        assert_eq!(of_grub("insmod blscfg\nblscfg\n"), None);
    }

    #[test]
    fn an_entry_of_the_specification_is_read() {
        let text = "title Fedora\nversion 6.8.5-301.fc40\nlinux /vmlinuz-6.8.5\ninitrd /a.img\ninitrd /b.img\n\
            options root=UUID=cd ro\noptions \"rhgb\" $tuned_params\n";
        let (version, entry) = of_specification("x.conf", text).unwrap();
        assert_eq!(version, "6.8.5-301.fc40");
        assert_eq!(entry.initrds, ["/a.img", "/b.img"]);
        assert_eq!(entry.arguments, ["root=UUID=cd", "ro", "rhgb"]);
        assert_eq!(of_specification("x.conf", "title Windows\nefi /EFI/x.efi\n"), None);
    }

    #[test]
    fn the_newest_kernel_is_found_by_its_name() {
        let names = [
            "vmlinuz-6.1.0-9-amd64",
            "vmlinuz-6.1.0-10-amd64",
            "initrd.img-6.1.0-9-amd64",
            "initrd.img-6.1.0-10-amd64",
            "vmlinuz-0-rescue-ab",
            "config-7",
        ];
        let names: Vec<String> = names.map(str::to_owned).into();
        let entry = of_names("/boot", &names).unwrap();
        assert_eq!(entry.kernel, "/boot/vmlinuz-6.1.0-10-amd64");
        assert_eq!(entry.initrds, ["/boot/initrd.img-6.1.0-10-amd64"]);
        assert_eq!(of_names("/boot", &[]), None);
    }

    #[test]
    fn versions_are_ordered_as_people_do() {
        let ordered = ["1.0~rc1", "1.0", "1.0-1", "1.0-2", "1.0-10", "1.2", "1.10"];
        for pair in ordered.windows(2) {
            assert_eq!(by_version(pair[0], pair[1]), Ordering::Less, "{pair:?}");
        }
        assert_eq!(by_version("1.01", "1.1"), Ordering::Equal);
    }

    proptest! {
        #[test]
        fn no_text_panics(a in any::<String>(), b in any::<String>()) {
            let _ = (of_grub(&a), of_specification(&a, &b));
            prop_assert_eq!(by_version(&a, &b), by_version(&b, &a).reverse());
        }
    }
}
