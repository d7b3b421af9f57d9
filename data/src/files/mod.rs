//! Opening files in folders that somebody else may have made: no symbolic link leads a write astray, and where a file is
//! meant nothing else is opened.

mod mapped;
#[doc(hidden)]
pub mod replace;

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::path::Path;

pub use mapped::MappedFile;

/// Most bytes of a file that is read into memory at once and describes something: settings, a vocabulary, a manifest.
/// The largest published `tokenizer.json` has 35 MB.
pub const MOST_BYTES: u64 = 512 << 20;
/// Most bytes of a line that Kiln wrote itself, such as one of `metrics.jsonl`.
pub const MOST_LINE_BYTES: u64 = 64 << 20;
/// How often a name is taken anew when somebody else makes a file of that name meanwhile.
const ATTEMPTS: usize = 8;

/// Opens a file for reading. A link to a file will do; a pipe, a device or a folder will not, and is not waited for.
///
/// # Errors
/// If the file does not exist, if it cannot be read, or (`InvalidData`) if it is not a regular file.
pub fn open_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    without_waiting(&mut options, false);
    regular(options.open(path)?)
}

/// Reads a file of at most [`MOST_BYTES`].
///
/// # Errors
/// As [`open_file`], and if the file is larger: nothing is allocated for it then.
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    read_at_most(path, MOST_BYTES)
}

/// Reads a file of at most `most` bytes.
///
/// # Errors
/// As [`read_file`].
pub fn read_at_most(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open_file(path)?;
    let len = file.metadata()?.len();
    let too_large = |len: u64| {
        let problem =
            format!("it has {len} bytes, and a file of this kind at most {most}: it is another file, or damaged");
        io::Error::new(ErrorKind::InvalidData, problem)
    };
    if len > most {
        return Err(too_large(len));
    }
    let mut bytes = Vec::with_capacity(len as usize);
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(too_large(bytes.len() as u64)) } else { Ok(bytes) }
}

/// Reads a text of at most [`MOST_BYTES`].
///
/// # Errors
/// As [`read_file`], and if it is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    let text = String::from_utf8(read_file(path)?);
    text.map_err(|error| io::Error::new(ErrorKind::InvalidData, format!("it is not UTF-8 text: {error}")))
}

/// Reads a line with its end into `line`, which it empties first. Returns whether there was one.
///
/// # Errors
/// As the reader, and (`InvalidData`) if the line is longer than `most` bytes.
pub fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>, most: u64) -> io::Result<bool> {
    line.clear();
    let n = input.take(most + 1).read_until(b'\n', line)?;
    if n as u64 > most {
        let problem = format!("a line has more than {most} bytes; break it into shorter lines");
        return Err(io::Error::new(ErrorKind::InvalidData, problem));
    }
    Ok(n > 0)
}

/// Creates a file that did not exist: what has its name is removed before, and a link is not followed.
///
/// # Errors
/// If the name belongs to a folder, or if the file cannot be made.
pub fn create_fresh(path: &Path) -> io::Result<File> {
    let mut refused = None;
    for _ in 0..ATTEMPTS {
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        match OpenOptions::new().read(true).write(true).create_new(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => refused = Some(error),
            opened => return opened,
        }
    }
    Err(refused.unwrap_or_else(|| ErrorKind::AlreadyExists.into()))
}

/// Writes a file that did not exist, as [`create_fresh`] creates it.
///
/// # Errors
/// As [`create_fresh`], and if it cannot be written.
pub fn write_fresh(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create_fresh(path)?.write_all(bytes)
}

/// Does the same as [`write_fresh`], and waits until the bytes are on disk.
///
/// # Errors
/// As [`create_fresh`], or if the bytes cannot be written.
pub fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = create_fresh(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Removes a folder with everything in it, if there is one.
///
/// # Errors
/// If it cannot be removed.
pub fn remove_dir_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Opens a file that Kiln keeps from run to run (a lock, a log) for reading and appending, and creates it if it is not there.
///
/// # Errors
/// If the name is a link or not a regular file (`InvalidInput`), if the file has another name elsewhere, or if it cannot be
/// written.
pub fn open_own(path: &Path) -> io::Result<File> {
    let found = fs::symlink_metadata(path);
    let is_link = found.is_ok_and(|found| found.file_type().is_symlink());
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true);
    without_waiting(&mut options, true);
    let opened = if is_link { Err(ErrorKind::InvalidInput.into()) } else { options.open(path) };
    let file = opened.map_err(|error| match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_symlink() => misused("is a symbolic link"),
        _ => error,
    })?;
    let file = regular(file).map_err(|error| misused(&error.to_string()))?;
    if has_other_names(&file)? { Err(misused("has another name elsewhere (a hard link)")) } else { Ok(file) }
}

/// The error of a file that Kiln would write and that leads elsewhere.
fn misused(what: &str) -> io::Error {
    let problem = format!("it {what}, and Kiln does not write through it: remove it and repeat the command");
    io::Error::new(ErrorKind::InvalidInput, problem.replace("it it ", "it "))
}

fn regular(file: File) -> io::Result<File> {
    let kind = file.metadata()?.file_type();
    match kind.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(ErrorKind::InvalidData, format!("it is {}, not a file", name_of(kind)))),
    }
}

#[cfg(unix)]
fn name_of(kind: fs::FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;

    match kind {
        kind if kind.is_dir() => "a folder",
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

#[cfg(not(unix))]
fn name_of(kind: fs::FileType) -> &'static str {
    if kind.is_dir() { "a folder" } else { "a device" }
}

/// Opens a pipe without waiting for its other end; `own`: and refuses a link.
#[cfg(unix)]
fn without_waiting(options: &mut OpenOptions, own: bool) {
    use std::os::unix::fs::OpenOptionsExt;

    options.custom_flags(libc::O_NONBLOCK | if own { libc::O_NOFOLLOW } else { 0 });
}

#[cfg(not(unix))]
fn without_waiting(_: &mut OpenOptions, _: bool) {}

#[cfg(unix)]
fn has_other_names(file: &File) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;

    Ok(file.metadata()?.nlink() > 1)
}

#[cfg(not(unix))]
fn has_other_names(_: &File) -> io::Result<bool> {
    Ok(false)
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn no_write_goes_through_a_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let (victim, link) = (folder.path().join("victim"), folder.path().join("link"));
        fs::write(&victim, "mine").expect("written");
        symlink(&victim, &link).expect("a link");
        let error = open_own(&link).expect_err("a link").to_string();
        assert!(error.contains("symbolic link") && error.contains("remove it"), "{error}");
        create_fresh(&link).expect("a file of its own").write_all(b"new").expect("written");
        assert_eq!(
            (fs::read(&victim).expect("there"), fs::read(&link).expect("there")),
            (b"mine".into(), b"new".into())
        );
        assert!(!fs::symlink_metadata(&link).expect("there").file_type().is_symlink());

        // A link to nothing creates nothing.
        let (nothing, to_nothing) = (folder.path().join("nothing"), folder.path().join("to-nothing"));
        symlink(&nothing, &to_nothing).expect("a link");
        open_own(&to_nothing).expect_err("a link");
        create_fresh(&to_nothing).expect("a file of its own");
        assert!(!nothing.exists());

        let hard = folder.path().join("hard");
        fs::hard_link(&victim, &hard).expect("a link");
        assert!(open_own(&hard).expect_err("a link").to_string().contains("hard link"));
        open_own(&folder.path().join("new")).expect("created").write_all(b"one").expect("written");
        open_own(&folder.path().join("new")).expect("kept").write_all(b"two").expect("appended");
        assert_eq!(fs::read(folder.path().join("new")).expect("there"), b"onetwo");
    }

    #[test]
    fn only_files_are_read_and_only_as_large_as_they_may_be() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("a system tool");
        assert!(made.success());
        for (path, what) in
            [(path.as_path(), "a pipe"), (Path::new("/dev/zero"), "a device"), (folder.path(), "a folder")]
        {
            let error = read_file(path).expect_err(what);
            assert!(error.kind() == ErrorKind::InvalidData && error.to_string().contains(what), "{error}");
        }
        assert!(open_own(&path).expect_err("a pipe").to_string().contains("a pipe"));

        let sparse = folder.path().join("sparse");
        File::create(&sparse).expect("a file").set_len(1 << 40).expect("sparse");
        let error = read_file(&sparse).expect_err("a terabyte").to_string();
        assert!(error.contains("1099511627776 bytes"), "{error}");
        let small = folder.path().join("small");
        fs::write(&small, "12345").expect("written");
        assert_eq!(read_at_most(&small, 5).expect("it fits"), b"12345");
        read_at_most(&small, 4).expect_err("one too many");

        let (mut input, mut line) = ("12\n345\n6".as_bytes(), Vec::new());
        assert!(read_line(&mut input, &mut line, 3).expect("it fits") && line == b"12\n");
        assert!(
            read_line(&mut input, &mut line, 3).expect_err("one too many").to_string().contains("more than 3 bytes")
        );
    }
}
