//! A file mapped into memory. What has been read of it can be given back to the system, so that a process needs as much memory
//! as it works on, and not as much as the file is long.

use std::fs::File;
use std::io;

use memmap2::Mmap;

/// A mapped file.
#[derive(Debug)]
pub struct MappedFile(Mmap);

impl MappedFile {
    /// Maps `file`.
    ///
    /// # Errors
    /// If the system cannot map the file.
    pub fn of(file: &File) -> io::Result<Self> {
        // SAFETY: a map is sound as long as nobody changes the file. Nobody should rewrite the files of a model in place while
        // they are read; Kiln itself replaces whole folders. All bytes are valid input: they are read as numbers or checked as
        // UTF-8.
        #[expect(unsafe_code, reason = "a memory map has no safe constructor; see SAFETY")]
        let map = unsafe { Mmap::map(file) }?;
        Ok(Self(map))
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Gives the memory of all pages that have been read back to the system. Whoever reads one again gets it from the file, or
    /// from the system's cache of it. Only memory is saved, so systems without this call need none.
    pub fn release(&self) {
        #[cfg(unix)]
        {
            // SAFETY: the map is of a file and is never written through. Its pages are filled again with the bytes of the same
            // file, so that references to them stay valid and see what they saw before.
            #[expect(unsafe_code, reason = "the library cannot know that the map is of an unchanged file; see SAFETY")]
            let released = unsafe { self.0.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
            // Without it, the process merely keeps more memory.
            drop(released);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_was_given_back_is_read_again() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("numbers");
        let wanted: Vec<u8> = (0..100_000).map(|i| (i % 251) as u8).collect();
        fs::write(&path, &wanted).expect("writable");
        let map = MappedFile::of(&File::open(&path).expect("there")).expect("mapped");
        for _ in 0..2 {
            assert_eq!(map.bytes(), wanted);
            map.release();
        }
    }
}
