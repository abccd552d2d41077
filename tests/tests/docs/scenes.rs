//! What a page takes for granted: the images and servers that are there before its first command, what happened
//! between its blocks, and what hosts, paths and sizes stand for in the test.

use crate::terminal::Terminal;

/// Before every page: an image whose machine stands still, in two forms, and a trace.
pub(crate) const SETUP: &str = r#"
head -c 3000000 /dev/urandom > golden.raw
printf '\372\364\353\375' | dd of=golden.raw conv=notrunc status=none
printf '\125\252' | dd of=golden.raw bs=1 seek=510 conv=notrunc status=none
truncate -s 8M golden.raw
qemu-img convert -f raw -O qcow2 golden.raw golden.qcow2
printf 'time_us,client,disk,op,offset,length\n' > day.trace
awk 'BEGIN { for (i = 0; i < 8000; i++) printf "%d,c%d,alice,%s,%d,4096\n", i * 250, i % 4, i % 5 ? "R" : "W", i * 7919 % 2048 * 4096 }' >> day.trace
mkdir -p "$SOJOURN_PAGE/etc/bash_completion.d" "$SOJOURN_PAGE/etc/pki" "$SOJOURN_PAGE/mnt" "$SOJOURN_PAGE/srv" "$SOJOURN_PAGE/s3/lab/images"
"#;

/// A home with an image and a disk.
const HOME: &str = r#"
sojourn init
sojourn image import golden.qcow2 debian
sojourn disk create alice --from debian
"#;

/// The same, with certificates and a rule for alice.
const SECURE: &str = r#"
sojourn init
sojourn image import golden.qcow2 debian
sojourn disk create alice --from debian
sojourn cert ca
sojourn cert server localhost
sojourn cert client alice
sed -i '1i access = [{ certificate = "alice", write = ["alice"], read = ["debian", "debian:*"] }]' "$SOJOURN_HOME/sojourn.toml"
"#;

/// What every page's hosts and paths stand for; ports stand for free ones.
const EVERYWHERE: [(&str, &str); 14] = [
    ("https://lab.example.org", "https://localhost:9443"),
    ("nbds://disks.example.org/", "nbds://localhost:10809/"),
    ("lab.example.org", "localhost"),
    ("disks.example.org", "localhost"),
    ("nbd://lab/", "nbd://127.0.0.1:10809/"),
    ("nbd://server/", "nbd://127.0.0.1:10809/"),
    ("nbd://127.0.0.1/", "nbd://127.0.0.1:10809/"),
    ("s3://", "{DIR}/s3/"),
    ("/var/lib/sojourn", "{DIR}/home"),
    ("/media/usb", "{DIR}/media/usb"),
    (" /etc/", " {DIR}/etc/"),
    ("=/etc/", "={DIR}/etc/"),
    ("/mnt/", "{DIR}/mnt/"),
    ("/srv/", "{DIR}/srv/"),
];

/// What surrounds the commands of a page.
#[derive(Debug, Default)]
pub(crate) struct Scene {
    /// Its path from the top.
    pub(crate) page: &'static str,
    /// Commands before its first one. The command `stop` ends every server.
    pub(crate) before: &'static str,
    /// Commands before each that begins so.
    pub(crate) between: &'static [(&'static str, &'static str)],
    /// Commands behind its last one.
    pub(crate) after: &'static str,
    /// What else of it stands for something.
    replaced: &'static [(&'static str, &'static str)],
}

impl Scene {
    /// A text of the page, as the test has it.
    pub(crate) fn filled(&self, text: &str, terminal: &mut Terminal) -> String {
        let mut text = text.to_owned();
        for (from, to) in self.replaced.iter().chain(&EVERYWHERE) {
            text = text.replace(from, to);
        }
        let text = terminal.with_free_ports(&text);
        text.replace("{DIR}", &terminal.dir().display().to_string())
    }

    /// That of a page.
    pub(crate) fn of(page: &'static str) -> Self {
        let scene = match page {
            "README.md" => README,
            "docs/api.md" => API,
            "docs/attach.md" => ATTACH,
            "docs/borrow.md" => BORROW,
            "docs/config.md" => CONFIG,
            "docs/disks.md" => DISKS,
            "docs/encryption.md" => ENCRYPTION,
            "docs/gateway.md" => GATEWAY,
            "docs/images.md" => IMAGES,
            "docs/iscsi.md" => ISCSI,
            "docs/media.md" => MEDIA,
            "docs/model.md" => MODEL,
            "docs/nbd.md" => NBD,
            "docs/replay.md" => REPLAY,
            "docs/security.md" => SECURITY,
            "docs/serve.md" => SERVE,
            "docs/stores.md" => STORES,
            "docs/trace.md" => TRACE,
            "docs/vhost-user.md" => VHOST_USER,
            "docs/vm.md" => VM,
            // What needs no more than this.
            _ => Scene { before: HOME, ..NOTHING },
        };
        Self { page, ..scene }
    }
}

const NOTHING: Scene = Scene { page: "", before: "", between: &[], after: "", replaced: &[] };

const API: Scene = Scene {
    before: HOME,
    between: &[(
        "api http://127.0.0.1:9180/api/v1/media",
        r#"
mkdir -p "$SOJOURN_PAGE/media/usb"
sed -i "1i sources = [\"$SOJOURN_PAGE/media/usb\"]" "$SOJOURN_HOME/sojourn.toml"
"#,
    )],
    ..NOTHING
};

const README: Scene = Scene {
    between: &[
        (
            "sojourn image import golden.qcow2 debian      #",
            "stop\nrm -r \"$SOJOURN_HOME\"\nsojourn init",
        ),
        (
            "sojourn init --store s3://lab/images --encrypt",
            r#"
stop
rm -r "$SOJOURN_HOME"
export SOJOURN_PASSPHRASE=open-sesame
"#,
        ),
        (
            "sojourn repair --from",
            r#"
sojourn --home "$SOJOURN_PAGE/died" init --store "$SOJOURN_PAGE/s3/lab/images"
sojourn --home "$SOJOURN_PAGE/died" image import golden.qcow2 debian
sojourn --home "$SOJOURN_PAGE/died" disk create alice --from debian
sojourn --home "$SOJOURN_PAGE/died" disk release alice
cp -r "$SOJOURN_PAGE/s3/lab/images" "$SOJOURN_PAGE/media/usb/store"
"#,
        ),
        (
            "sojourn media write",
            r#"
rm -r "$SOJOURN_PAGE/media/usb/store"
mkdir "$SOJOURN_PAGE/usr"
cp golden.raw "$SOJOURN_PAGE/usr"
"#,
        ),
        (
            "sojourn attach alice",
            r#"
stop
rm -r "$SOJOURN_HOME"
unset SOJOURN_PASSPHRASE
sojourn init
sojourn image import golden.qcow2 debian
sojourn disk create alice --from debian
sojourn disk release alice
sojourn cert ca
sojourn cert server localhost
sojourn cert client alice
sed -i '1i access = [{ certificate = "alice", write = ["alice"], read = ["debian", "debian:*"] }]' "$SOJOURN_HOME/sojourn.toml"
cp -r "$SOJOURN_HOME/tls/clients/alice" ~/alice
sojourn serve --gateway 127.0.0.1:9443
export SOJOURN_HOME="$SOJOURN_PAGE/laptop"
"#,
        ),
        (
            "sojourn vm create",
            r#"
stop
export SOJOURN_HOME="$SOJOURN_PAGE/home"
sed -i '/^access/d' "$SOJOURN_HOME/sojourn.toml"
sojourn disk take alice
"#,
        ),
        (
            "sojourn borrow scan",
            r#"
sojourn vm stop --force work
sojourn drain || true
truncate -s 64M disk.img
mke2fs -q -F -t ext4 disk.img
"#,
        ),
        (
            "sojourn trace stats",
            "nbdcopy \"nbd+unix:///alice?socket=$SOJOURN_HOME/nbd.sock\" null:\nstop",
        ),
    ],
    replaced: &[(" /usr", " {DIR}/usr"), ("/dev/sda", "disk.img")],
    ..NOTHING
};

const ATTACH: Scene = Scene {
    before: SECURE,
    between: &[
        ("sojourn cert client alice", "rm -r \"$SOJOURN_HOME/tls/clients/alice\""),
        (
            "sojourn attach alice --from https://lab.example.org --tls-dir ~/alice --source",
            "cp -r \"$SOJOURN_HOME/tls/clients/alice\" ~/alice\nexport SOJOURN_HOME=\"$SOJOURN_PAGE/laptop\"",
        ),
    ],
    after: "sojourn detach alice",
    ..NOTHING
};

const BORROW: Scene = Scene {
    before: "sojourn init\ntruncate -s 64M disk.img\nmke2fs -q -F -t ext4 disk.img",
    replaced: &[("/var/tmp", "{DIR}/tmp"), ("20G", "64M")],
    ..NOTHING
};

const CONFIG: Scene =
    Scene { before: "sojourn init\ncp \"$SOJOURN_HOME/sojourn.toml\" new.toml", ..NOTHING };

const DISKS: Scene = Scene {
    before: "sojourn init\nsojourn image import golden.qcow2 debian",
    between: &[
        ("sojourn disk create bob", "sojourn disk snapshot alice before-upgrade"),
        (
            "sojourn disk snapshot",
            "sojourn disk remove bob\nsojourn disk remove alice@before-upgrade",
        ),
        ("sojourn disk release", "sojourn disk create alice --from debian"),
        (
            "sojourn disk keep alice alice-from-lab3",
            r#"
sojourn --home "$SOJOURN_PAGE/lab3" init --store "$SOJOURN_HOME/store"
sojourn --home "$SOJOURN_PAGE/lab3" disk take --force alice
"#,
        ),
        (
            "sojourn disk remove alice                  #",
            r#"
sojourn disk take --force alice
sojourn --home "$SOJOURN_PAGE/lab4" init --store "$SOJOURN_HOME/store"
sojourn --home "$SOJOURN_PAGE/lab4" disk take --force alice
"#,
        ),
        (
            "sojourn disk keep alice alice-as-it-was",
            r#"
sojourn disk take --force alice
cp -r "$SOJOURN_HOME/disks/alice" before
sojourn disk grow alice 41G
sojourn disk snapshot alice later
cp before/* "$SOJOURN_HOME/disks/alice"
"#,
        ),
    ],
    ..NOTHING
};

const ENCRYPTION: Scene = Scene {
    before: "export SOJOURN_PASSPHRASE=open-sesame SOJOURN_NEW_PASSPHRASE=open-barley",
    between: &[
        ("sojourn init --encrypt --key-file", "rm -r \"$SOJOURN_HOME\""),
        (
            "sojourn store key list",
            "rm -r \"$SOJOURN_HOME\"\nsojourn init --encrypt\nhead -c 32 /dev/urandom > server2.key\nchmod 600 server2.key",
        ),
        ("sojourn store key remove", "export SOJOURN_PASSPHRASE=\"$SOJOURN_NEW_PASSPHRASE\""),
    ],
    ..NOTHING
};

const GATEWAY: Scene = Scene {
    before: SECURE,
    between: &[
        (
            "sojourn init --store",
            r#"
sojourn disk release alice
cp -r "$SOJOURN_HOME/tls/clients/alice" "$SOJOURN_PAGE/etc/pki/sojourn"
export SOJOURN_HOME="$SOJOURN_PAGE/laptop"
"#,
        ),
        ("curl --http2", "cp \"$SOJOURN_PAGE/etc/pki/sojourn/\"*.pem ."),
    ],
    replaced: &[("$GATEWAY", "https://localhost:9443"), ("curl --http2", "curl -sSf --http2")],
    ..NOTHING
};

const IMAGES: Scene = Scene {
    before: r#"
sojourn init
gzip -k golden.raw
cp golden.raw new.raw
echo a kernel > vmlinuz-6.1
echo a RAM disk > initrd.img-6.1
sojourn --home "$SOJOURN_PAGE/other" init
sojourn --home "$SOJOURN_PAGE/other" image import golden.raw golden
sojourn --home "$SOJOURN_PAGE/other" disk create disk --from golden
sojourn --home "$SOJOURN_PAGE/other" disk create target --from golden
SOJOURN_HOME="$SOJOURN_PAGE/other" sojourn serve --nbd 127.0.0.1:10809
"#,
    between: &[
        (
            "sojourn verify debian:1",
            "sojourn disk create alice --from debian:1\nsojourn disk snapshot alice monday",
        ),
        ("sojourn repair", "cp -r \"$SOJOURN_HOME/store\" \"$SOJOURN_PAGE/mnt/copy\""),
        (
            "sojourn image boot-list show",
            "printf '0 4096\\n' > list\nsojourn image boot-list record debian:2 list",
        ),
    ],
    ..NOTHING
};

const ISCSI: Scene = Scene {
    before: r#"
sojourn init
sojourn image import golden.qcow2 debian
sojourn disk create alice --from debian
printf 'alice:sixteen-letters-or-so\n' > chap
chmod 600 chap
"#,
    between: &[("iscsi-ls", "stop\nsojourn serve --iscsi 127.0.0.1:3260")],
    ..NOTHING
};

const MEDIA: Scene = Scene {
    before: r#"
sojourn init
sojourn image import golden.qcow2 debian
sojourn disk create alice --from debian
sojourn disk create work --from debian
sojourn vm create work --disk work --memory 64M
sojourn vm start work
sojourn vm suspend --wait work
sojourn drain || true
cp golden.qcow2 old-debian.qcow2
mkdir "$SOJOURN_PAGE/usr"
cp golden.raw "$SOJOURN_PAGE/usr"
cp -r "$SOJOURN_HOME/store" "$SOJOURN_PAGE/mnt/copy-of-the-store"
"#,
    replaced: &[(" /usr", " {DIR}/usr")],
    ..NOTHING
};

const MODEL: Scene = Scene {
    before: r#"
printf 'version = 1\nname = "a server"\n[[centre]]\nname = "cpu"\nrequest_ms = { 4K = 0.05, 32K = 0.1 }\nmiss_ms = 0.2\n[[centre]]\nname = "disk"\nmiss_ms = { 4K = 6.76, 32K = 7.2 }\n' > server.toml
cp day.trace boot.trace
"#,
    ..NOTHING
};

const NBD: Scene = Scene {
    before: r#"
export SOJOURN_HOME="$SOJOURN_PAGE/other"
sojourn init
sojourn image import golden.qcow2 debian
sojourn disk create alice --from debian
sojourn cert ca
sojourn cert server localhost
sojourn cert client alice
sed -i '1i access = [{ certificate = "alice", write = ["alice"] }]' "$SOJOURN_HOME/sojourn.toml"
cp -r "$SOJOURN_HOME/tls/clients/alice" "$SOJOURN_PAGE/etc/pki/sojourn"
sojourn serve --nbd 127.0.0.1:10809 --tls required
export SOJOURN_HOME="$SOJOURN_PAGE/home"
sojourn init
"#,
    ..NOTHING
};

const REPLAY: Scene = Scene {
    before: r#"
sojourn init
sojourn image import golden.qcow2 debian
sojourn serve --nbd 127.0.0.1:10809
for i in $(seq 50); do sojourn disk create vm$i --from debian; done && sojourn disk show vm50
cp day.trace boot.trace
"#,
    ..NOTHING
};

const SECURITY: Scene = Scene {
    before: HOME,
    between: &[
        (
            "sojourn cert client alice                            #",
            "rm -r \"$SOJOURN_HOME/tls/clients/alice\"",
        ),
        (
            "nbdinfo",
            r#"
sed -i '1i access = [{ certificate = "*", write = ["{name}"], read = ["debian", "debian:*"] }]' "$SOJOURN_HOME/sojourn.toml"
cp -r "$SOJOURN_HOME/tls/clients/alice" "$SOJOURN_PAGE/etc/pki/sojourn"
sojourn serve --nbd 127.0.0.1:10809 --tls required
"#,
        ),
    ],
    // That of the address beside it.
    replaced: &[("port=10809", "port=$(echo :10809 | tr -d :)")],
    ..NOTHING
};

const SERVE: Scene = Scene {
    before: "cp golden.qcow2 disk.qcow2",
    between: &[
        ("sojourn serve --export", "stop"),
        ("sojourn cache set", "sojourn serve"),
        ("sojourn drain", "stop\nsojourn serve"),
    ],
    // Of a cache on a machine that has less.
    replaced: &[("8GiB", "64MiB")],
    ..NOTHING
};

const STORES: Scene = Scene {
    before: r#"
mkdir -p "$SOJOURN_PAGE/s3/bucket/prefix" "$SOJOURN_PAGE/s3/golden" "$SOJOURN_PAGE/s3/backup"
sojourn init --store "$SOJOURN_PAGE/s3/golden/store"
sojourn image import golden.raw debian
sojourn image import golden.raw debian
sojourn image import golden.raw debian
"#,
    ..NOTHING
};

const TRACE: Scene = Scene {
    before: HOME,
    between: &[
        (
            "sojourn trace record",
            r#"
sojourn --home "$SOJOURN_PAGE/other" init
sojourn --home "$SOJOURN_PAGE/other" image import golden.raw golden
sojourn --home "$SOJOURN_PAGE/other" disk create disk --from golden
SOJOURN_HOME="$SOJOURN_PAGE/other" sojourn serve --nbd 127.0.0.1:10809
"#,
        ),
        (
            "sojourn trace stats",
            r#"
nbdcopy "nbd+unix:///alice?socket=$SOJOURN_HOME/nbd.sock" null:
nbdcopy "nbd+unix:///disk?socket=$PWD/tap.sock" null:
stop
"#,
        ),
        ("sojourn trace convert", "sojourn trace convert day.trace web.load.gz"),
        (
            "sojourn trace cut",
            r#"
mkdir traces
cp day.sjt tap.sjt traces
printf 'time_s,op,offset,length\n34000,R,0,4096\n34001,R,8192,4096\n' > nine.csv
sojourn trace convert nine.csv day.sjt --force
"#,
        ),
        (
            "sojourn trace sample",
            r#"
cp day.sjt huge.sjt
cp day.sjt ours.sjt
sojourn trace convert day.trace a.csv
cp a.csv b.csv
"#,
        ),
    ],
    ..NOTHING
};

const VM: Scene = Scene {
    before: r#"
sojourn --home "$SOJOURN_PAGE/here" init --store "$SOJOURN_PAGE/s3/first"
sojourn --home "$SOJOURN_PAGE/there" init --store "$SOJOURN_PAGE/s3/first"
sojourn --home "$SOJOURN_PAGE/here" image import golden.qcow2 debian
sojourn --home "$SOJOURN_PAGE/here" disk create alice --from debian
"#,
    between: &[
        (
            "sojourn init",
            "sojourn vm stop --force work || true\nsojourn drain || true\nrm -r \"$SOJOURN_HOME\"",
        ),
        (
            "sojourn vm list                            #",
            "sojourn --home \"$SOJOURN_PAGE/here\" vm suspend --wait work",
        ),
        (
            "head -1",
            "sojourn vm suspend --wait work\nsed -i \"1i sources = [\\\"$SOJOURN_PAGE/media/usb\\\"]\" \"$SOJOURN_HOME/sojourn.toml\"",
        ),
        ("sojourn vm clone", "sojourn vm suspend --wait work"),
    ],
    after: "sojourn vm stop --force work || true",
    replaced: &[("~/.local/share/sojourn", "{DIR}/there"), ("memory 2G", "memory 64M")],
    ..NOTHING
};

const VHOST_USER: Scene = Scene {
    before: HOME,
    between: &[("sojourn serve --export", "stop")],
    replaced: &[
        ("/run/sojourn-vu", "{DIR}/vu"),
        ("2G", "64M"),
        // A machine that ends, and well: one that does not start cannot be killed.
        (",bootindex=1'", ",bootindex=1 & sleep 3; kill $!'"),
    ],
    ..NOTHING
};
