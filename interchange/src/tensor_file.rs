//! Writes `.safetensors` files tensor by tensor: some threads read and convert tensors while another writes them, and no more tensors
//! are in memory than there are threads.

use std::collections::HashMap;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::thread;

use kiln_data::files::create_fresh;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

/// What the header of a file says about a tensor.
#[derive(Debug, Clone)]
pub struct TensorHead {
    /// The tensor's name.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
}

impl TensorHead {
    /// Returns the bytes of the elements.
    pub fn n_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bitsize() / 8
    }
}

/// Writes the file `path` with the tensors `heads`, and waits until it is on disk. `read` returns the bytes of a tensor by its index;
/// at most `n_threads` call it at the same time. `written` gets all bytes in their order.
///
/// [`safetensors::serialize`] writes the same bytes.
///
/// # Errors
/// The first error of `read`, or what `failed` makes of the system's.
pub fn write_tensors<B: AsRef<[u8]> + Send, E: Send>(
    path: &Path,
    heads: &[TensorHead],
    n_threads: usize,
    read: impl Fn(usize) -> Result<B, E> + Sync,
    mut written: impl FnMut(&[u8]),
    failed: impl Fn(io::Error) -> E + Copy,
) -> Result<(), E> {
    // As `safetensors` orders them: by alignment, then by name.
    let mut order: Vec<usize> = (0..heads.len()).collect();
    let key = |i: &usize| (std::cmp::Reverse(heads[*i].dtype), &heads[*i].name);
    order.sort_by(|a, b| key(a).cmp(&key(b)));

    let mut out = create_fresh(path).map(|file| BufWriter::with_capacity(1 << 20, file)).map_err(failed)?;
    let mut put = |bytes: &[u8]| -> Result<(), E> {
        written(bytes);
        out.write_all(bytes).map_err(failed)
    };
    put(&header(heads, &order))?;

    let n_threads = n_threads.clamp(1, order.len().max(1));
    let (order, read) = (&order, &read);
    thread::scope(|scope| {
        // Each thread waits with its tensor until the file has come that far.
        let mut channels = Vec::with_capacity(n_threads);
        for first in 0..n_threads {
            let (send, receive) = sync_channel(0);
            scope.spawn(move || {
                let mut own = order.iter().skip(first).step_by(n_threads);
                // A closed channel means that writing has failed.
                own.all(|i| send.send(read(*i)).is_ok())
            });
            channels.push(receive);
        }
        let mut turns = channels.iter().cycle();
        order.iter().try_for_each(|_| {
            let channel = turns.next().expect("at least one thread");
            put(channel.recv().expect("a thread sends every tensor of its share")?.as_ref())
        })
    })?;
    out.into_inner().map_err(io::IntoInnerError::into_error).and_then(|file| file.sync_all()).map_err(failed)
}

/// The header, with its length in front.
fn header(heads: &[TensorHead], order: &[usize]) -> Vec<u8> {
    let mut offset = 0;
    let infos = order.iter().map(|i| {
        let head = &heads[*i];
        let data_offsets = (offset, offset + head.n_bytes());
        offset = data_offsets.1;
        (head.name.clone(), TensorInfo { dtype: head.dtype, shape: head.shape.clone(), data_offsets })
    });
    // Loaders of other frameworks expect "pt", and transformers refuses files that do not name one.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(metadata), infos.collect()).expect("tensors lie end to end");
    let mut json = serde_json::to_vec(&metadata).expect("plain numbers and strings can be written");
    json.resize(json.len().next_multiple_of(8), b' ');
    [(json.len() as u64).to_le_bytes().as_slice(), &json].concat()
}

/// Threads that convert tensors for one file: each holds a tensor, so that few are enough.
pub fn usual_threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(4)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use safetensors::tensor::TensorView;

    use super::*;

    fn tensors() -> Vec<(TensorHead, Vec<u8>)> {
        let of = |(name, dtype, shape): (&str, Dtype, &[usize])| {
            let head = TensorHead { name: name.to_owned(), dtype, shape: shape.to_vec() };
            let bytes = (0..head.n_bytes()).map(|i| (i * 7 + name.len()) as u8).collect();
            (head, bytes)
        };
        [
            ("b.weight", Dtype::BF16, &[3, 2][..]),
            ("a.weight", Dtype::BF16, &[5]),
            ("c", Dtype::F32, &[2, 2]),
            ("empty", Dtype::F32, &[0]),
            ("d", Dtype::F16, &[1]),
        ]
        .map(of)
        .into()
    }

    #[test]
    fn a_file_has_the_bytes_of_the_library_with_any_number_of_threads() {
        let dir = tempfile::tempdir().expect("a folder");
        let all = tensors();
        let views = all.iter().map(|(head, bytes)| {
            (head.name.clone(), TensorView::new(head.dtype, head.shape.clone(), bytes).expect("as long as its shape"))
        });
        let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let wanted = safetensors::serialize(views, Some(metadata)).expect("plain tensors");
        let heads: Vec<_> = all.iter().map(|(head, _)| head.clone()).collect();
        for n_threads in [1, 2, 9] {
            let path = dir.path().join("file");
            let mut seen = Vec::new();
            let read = |i: usize| Ok::<_, io::Error>(&all[i].1);
            write_tensors(&path, &heads, n_threads, read, |bytes| seen.extend_from_slice(bytes), |e| e)
                .expect("writable");
            assert!(fs::read(&path).expect("written") == wanted && seen == wanted, "{n_threads} threads");
        }
        write_tensors(&dir.path().join("none"), &[], 4, |_| -> io::Result<Vec<u8>> { unreachable!() }, |_| (), |e| e)
            .expect("a file without tensors");
    }

    #[test]
    fn the_error_of_one_tensor_ends_all_threads() {
        let dir = tempfile::tempdir().expect("a folder");
        let all = tensors();
        let heads: Vec<_> = all.iter().map(|(head, _)| head.clone()).collect();
        let read = |i: usize| match i {
            1 => Err(io::Error::other("gone")),
            _ => Ok(&all[i].1),
        };
        let error = write_tensors(&dir.path().join("file"), &heads, 3, read, |_| (), |e| e).expect_err("one is gone");
        assert_eq!(error.to_string(), "gone");
    }
}
