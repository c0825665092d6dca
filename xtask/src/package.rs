//! `cargo xtask package`: a Debian package of the program, with units, helpers of mount(8), manual pages and completions.
//!
//! Needs no root: owners are set in the archive (`dpkg-deb --root-owner-group`). The same binary gives the same bytes: files
//! are sorted, times are the source's (`SOURCE_DATE_EPOCH`, else the last commit's), modes do not come from the umask.
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Findings, steps};

const USAGE: &str = "usage: cargo xtask package [--binary PATH] [--out DIR] [--uncompressed]
       --binary PATH    package this program instead of building one (release)
       --out DIR        where the package goes; default: target/package
       --uncompressed   for tests: packing takes long, and is not what they look at";

/// What the package is called, and its version.
const NAME: &str = "stria";
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-1");

/// Files as they are in the source, and where they are installed.
const FILES: &[(&str, &str)] = &[
    ("contrib/packaging/stria-mds@.service", "usr/lib/systemd/system/stria-mds@.service"),
    ("contrib/packaging/stria-oss@.service", "usr/lib/systemd/system/stria-oss@.service"),
    ("contrib/packaging/stria.sysusers", "usr/lib/sysusers.d/stria.conf"),
    ("contrib/packaging/stria.tmpfiles", "usr/lib/tmpfiles.d/stria.conf"),
    ("contrib/packaging/copyright", "usr/share/doc/stria/copyright"),
    ("contrib/packaging/example.conf", "usr/share/doc/stria/examples/cluster.conf"),
    ("contrib/grafana/stria.json", "usr/share/doc/stria/examples/grafana.json"),
    ("docs/install.md", "usr/share/doc/stria/install.md"),
    ("docs/limits.md", "usr/share/doc/stria/limits.md"),
    ("docs/reference/config.md", "usr/share/doc/stria/config.md"),
    ("docs/reference/metrics.md", "usr/share/doc/stria/metrics.md"),
    ("docs/reference/parameters.md", "usr/share/doc/stria/parameters.md"),
];

/// Links: `lfs` and `lctl` stay out of the path, where Lustre's may be.
const LINKS: &[(&str, &str)] = &[
    ("usr/lib/stria/bin/lfs", "../../../bin/stria"),
    ("usr/lib/stria/bin/lctl", "../../../bin/stria"),
    ("usr/sbin/mount.stria", "../bin/stria"),
    ("usr/sbin/mount.fuse.stria", "../bin/stria"),
    ("usr/sbin/umount.stria", "../bin/stria"),
    ("usr/sbin/umount.fuse.stria", "../bin/stria"),
];

const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "usr/share/bash-completion/completions/stria"),
    ("zsh", "usr/share/zsh/vendor-completions/_stria"),
    ("fish", "usr/share/fish/vendor_completions.d/stria.fish"),
];

const SCRIPTS: &[&str] = &["postinst", "prerm", "postrm"];

/// A step's outcome; the error is a sentence.
type Step<T = ()> = Result<T, String>;

struct Options {
    binary: Option<PathBuf>,
    out: PathBuf,
    compressed: bool,
}

/// Builds the package and prints its path.
pub fn package(root: &Path, arguments: &[String]) -> Findings {
    let built = options(root, arguments).and_then(|o| build(root, &o));
    built.map(|deb| println!("{}", deb.display())).map_err(|e| vec![e])
}

fn options(root: &Path, arguments: &[String]) -> Step<Options> {
    let mut o = Options { binary: None, out: steps::target(root).join("package"), compressed: true };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || rest.next().map(PathBuf::from).ok_or(format!("{argument} needs a path\n{USAGE}"));
        match argument.as_str() {
            "--binary" => o.binary = Some(value()?),
            "--out" => o.out = value()?,
            "--uncompressed" => o.compressed = false,
            _ => return Err(format!("package: '{argument}' is no option\n{USAGE}")),
        }
    }
    Ok(o)
}

fn build(root: &Path, o: &Options) -> Step<PathBuf> {
    let binary = match &o.binary {
        Some(path) => path.clone(),
        None => {
            steps::cargo(root, &["build", "--release", "--locked", "-p", NAME]).map_err(|e| e.join("\n"))?;
            steps::target(root).join("release").join(NAME)
        }
    };
    let epoch = epoch(root)?;
    let tree = o.out.join("root");
    if tree.exists() {
        fs::remove_dir_all(&tree).map_err(|e| format!("{}: {e}", tree.display()))?;
    }
    install_binary(&binary, &tree)?;
    for (from, to) in FILES {
        let bytes = fs::read(root.join(from)).map_err(|e| format!("{from}: {e}"))?;
        put(&tree.join(to), &bytes, 0o644)?;
    }
    for (link, to) in LINKS {
        let link = tree.join(link);
        directory(link.parent().unwrap_or(&tree))?;
        symlink(to, &link).map_err(|e| format!("{}: {e}", link.display()))?;
    }
    // Written by the program that was packaged.
    generated(&tree.join("usr/bin").join(NAME), &tree)?;
    changelogs(root, &tree, epoch)?;
    put(&tree.join("usr/share/doc/stria/SBOM"), sbom(root)?.as_bytes(), 0o644)?;
    let arch = output(Command::new("dpkg").arg("--print-architecture"))?;
    control(root, &tree, arch.trim())?;
    touch(&tree, epoch)?;
    let deb = o.out.join(format!("{NAME}_{VERSION}_{}.deb", arch.trim()));
    let packed: &[&str] = if o.compressed { &["-Zxz", "-z6", "--threads-max=1"] } else { &["-Znone"] };
    let mut command = Command::new("dpkg-deb");
    command.env("SOURCE_DATE_EPOCH", epoch.to_string()).args(["--root-owner-group", "--deb-format=2.0"]).args(packed);
    output(command.arg("--build").arg(&tree).arg(&deb))?;
    Ok(deb)
}

/// The time that everything in the package bears, in seconds since 1970.
fn epoch(root: &Path) -> Step<u64> {
    if let Ok(text) = std::env::var("SOURCE_DATE_EPOCH") {
        return text.parse().map_err(|_| format!("SOURCE_DATE_EPOCH={text}: write seconds since 1970"));
    }
    let told = output(Command::new("git").current_dir(root).args(["log", "-1", "--format=%ct"]))?;
    told.trim().parse().map_err(|_| format!("git told no time: '{}'; set SOURCE_DATE_EPOCH", told.trim()))
}

/// What a command printed.
fn output(command: &mut Command) -> Step<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command.stderr(Stdio::piped()).output().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => format!("{name} is not installed: apt-get install dpkg-dev binutils"),
        _ => format!("{name}: {e}"),
    })?;
    match out.status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        false => Err(format!("{name}: {}: {}", out.status, String::from_utf8_lossy(&out.stderr).trim())),
    }
}

fn directory(path: &Path) -> Step {
    fs::create_dir_all(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn put(path: &Path, bytes: &[u8], mode: u32) -> Step {
    directory(path.parent().unwrap_or(path))?;
    let written = fs::write(path, bytes).and_then(|()| fs::set_permissions(path, PermissionsExt::from_mode(mode)));
    written.map_err(|e| format!("{}: {e}", path.display()))
}

/// The program without what debuggers need.
fn install_binary(binary: &Path, tree: &Path) -> Step {
    let to = tree.join("usr/bin").join(NAME);
    directory(&tree.join("usr/bin"))?;
    output(Command::new("strip").arg("--strip-debug").arg("-o").arg(&to).arg(binary))?;
    fs::set_permissions(&to, PermissionsExt::from_mode(0o755)).map_err(|e| format!("{}: {e}", to.display()))
}

/// Manual pages and completions, from the program's own grammar.
fn generated(binary: &Path, tree: &Path) -> Step {
    let pages = tree.join("usr/share/man/man1");
    directory(&pages)?;
    output(Command::new(binary).arg("man").arg(&pages))?;
    for entry in fs::read_dir(&pages).map_err(|e| e.to_string())?.flatten() {
        gzip(&entry.path())?;
    }
    for (shell, to) in COMPLETIONS {
        let text = output(Command::new(binary).args(["completions", shell]))?;
        put(&tree.join(to), text.as_bytes(), 0o644)?;
    }
    // mount(8) looks for a page of its helper.
    for page in ["mount.stria", "umount.stria"] {
        let text = format!(".so man1/{}.1\n", if page == "mount.stria" { "stria-mount" } else { "stria-umount" });
        let at = tree.join(format!("usr/share/man/man8/{page}.8"));
        put(&at, text.as_bytes(), 0o644)?;
        gzip(&at)?;
    }
    Ok(())
}

fn gzip(path: &Path) -> Step {
    output(Command::new("gzip").args(["-9", "--no-name", "--force"]).arg(path))?;
    let packed = PathBuf::from(format!("{}.gz", path.display()));
    fs::set_permissions(&packed, PermissionsExt::from_mode(0o644)).map_err(|e| format!("{}: {e}", packed.display()))
}

fn changelogs(root: &Path, tree: &Path, epoch: u64) -> Step {
    let doc = tree.join("usr/share/doc/stria");
    let text = fs::read(root.join("CHANGELOG.md")).map_err(|e| format!("CHANGELOG.md: {e}"))?;
    put(&doc.join("changelog"), &text, 0o644)?;
    gzip(&doc.join("changelog"))?;
    let date = output(Command::new("date").env("LC_ALL", "C").args(["-u", "-R", "-d", &format!("@{epoch}")]))?;
    let entry = format!(
        "{NAME} ({VERSION}) unstable; urgency=medium\n\n  * Release {}; changelog.gz says what is new.\n\n -- {}  {}\n",
        env!("CARGO_PKG_VERSION"),
        MAINTAINER,
        date.trim()
    );
    put(&doc.join("changelog.Debian"), entry.as_bytes(), 0o644)?;
    gzip(&doc.join("changelog.Debian"))
}

const MAINTAINER: &str = "Stria maintainers <maintainers@stria.invalid>";

/// What the program is made of: crates, versions, licences, a line each.
fn sbom(root: &Path) -> Step<String> {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let arguments = ["metadata", "--offline", "--locked", "--format-version", "1", "--filter-platform", &platform];
    let found = output(Command::new(env!("CARGO")).current_dir(root).args(arguments))?;
    let found: serde_json::Value = serde_json::from_str(&found).map_err(|e| format!("cargo metadata: {e}"))?;
    let text = |p: &serde_json::Value, key: &str| p[key].as_str().unwrap_or("unknown").to_string();
    let packages = found["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let line = |p: &serde_json::Value| format!("{} {} {}", text(p, "name"), text(p, "version"), text(p, "license"));
    let mut lines: Vec<String> = packages.iter().map(line).collect();
    lines.sort();
    Ok(format!(
        "# crate, version, licence: what the build resolves, tools and tests of the source included\n{}\n",
        lines.join("\n")
    ))
}

fn control(root: &Path, tree: &Path, arch: &str) -> Step {
    let binary = fs::read(tree.join("usr/bin").join(NAME)).map_err(|e| e.to_string())?;
    let libc = glibc_needed(&binary).ok_or("the program needs no version of glibc: is it linked for this system?")?;
    let text = format!(
        "Package: {NAME}\nVersion: {VERSION}\nArchitecture: {arch}\nMaintainer: {MAINTAINER}\nInstalled-Size: {}\n\
Depends: libc6 (>= {}.{}), libgcc-s1\nRecommends: fuse3\nSection: admin\nPriority: optional\n\
Description: parallel file system in user space\n Files are striped over object storage targets, a metadata server keeps the namespace, and a\n \
distributed lock manager keeps every client's cache coherent. One program has every role:\n servers (units stria-mds@ and stria-oss@), mounts (mount -t stria) and tools.\n",
        kib(tree)?,
        libc.0,
        libc.1
    );
    put(&tree.join("DEBIAN/control"), text.as_bytes(), 0o644)?;
    for script in SCRIPTS {
        let bytes = fs::read(root.join("contrib/packaging").join(script)).map_err(|e| format!("{script}: {e}"))?;
        put(&tree.join("DEBIAN").join(script), &bytes, 0o755)?;
    }
    Ok(())
}

/// The newest version of glibc whose symbols a program wants.
fn glibc_needed(binary: &[u8]) -> Option<(u32, u32)> {
    const MARK: &[u8] = b"GLIBC_";
    let places = binary.windows(MARK.len()).enumerate().filter(|(_, w)| *w == MARK);
    places
        .filter_map(|(at, _)| {
            let rest = &binary[at + MARK.len()..];
            let text = std::str::from_utf8(&rest[..rest.iter().position(|b| *b == 0)?]).ok()?;
            let mut parts = text.split('.').map(str::parse::<u32>);
            Some((parts.next()?.ok()?, parts.next()?.ok()?))
        })
        .max()
}

/// KiB of everything that is installed, each file rounded up.
fn kib(tree: &Path) -> Step<u64> {
    let mut sum = 0;
    let mut waiting = vec![tree.to_path_buf()];
    while let Some(at) = waiting.pop() {
        for entry in fs::read_dir(&at).map_err(|e| format!("{}: {e}", at.display()))?.flatten() {
            let kind = entry.file_type().map_err(|e| e.to_string())?;
            if kind.is_dir() {
                waiting.push(entry.path());
            }
            sum += if kind.is_file() { entry.metadata().map_err(|e| e.to_string())?.len().div_ceil(1024) } else { 1 };
        }
    }
    Ok(sum)
}

/// Every file, directory and link bears one time, and directories are everybody's to read.
fn touch(tree: &Path, epoch: u64) -> Step {
    output(Command::new("find").arg(tree).args(["-type", "d", "-exec", "chmod", "0755", "{}", "+"]))?;
    let time = format!("@{epoch}");
    output(Command::new("find").arg(tree).args(["-depth", "-exec", "touch", "-h", "-d", &time, "{}", "+"])).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_glibc_that_is_wanted_is_found() {
        let binary = b"xxGLIBC_2.2.5\0GLIBC_2.34\0yyGLIBC_2.9\0GLIBC_PRIVATE\0GLIBC_ABI_DT_RELR\0";
        assert_eq!(glibc_needed(binary), Some((2, 34)));
        assert_eq!(glibc_needed(b"GLIBC_"), None);
    }

    #[test]
    fn options_are_read_and_refused_by_name() {
        let of = |line: &str| options(Path::new("/x"), &line.split(' ').map(String::from).collect::<Vec<_>>());
        let o = of("--binary a --out b --uncompressed").unwrap();
        assert_eq!((o.binary, o.out, o.compressed), (Some("a".into()), "b".into(), false));
        assert!(of("--binary").err().unwrap().contains("needs a path"));
        assert!(of("--frob").err().unwrap().contains("'--frob' is no option"));
    }
}
