//! Reads the activity records of CUPTI from their bytes.
//!
//! A newer CUPTI appends fields to a record and leaves the ones before them in place. Read is only the part that is the same in
//! `cupti_activity.h` of CUDA 12.9 (`CUpti_ActivityKernel9`, `CUpti_ActivityMemcpy6`, `CUpti_ActivityMemset4`) and 13.5 (`13`, `7`,
//! `5`). The structures are packed, so their fields lie at the same places on every platform with 64-bit pointers.

/// `CUPTI_ACTIVITY_KIND_MEMCPY`, `_MEMSET` and `_CONCURRENT_KERNEL`: the kinds that are read.
pub(super) const KINDS: [u32; 3] = [COPY, FILL, KERNEL];
const COPY: u32 = 1;
const FILL: u32 = 2;
const KERNEL: u32 = 10;

/// A record. Times are nanoseconds on CUPTI's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Activity {
    pub(in super::super) start: u64,
    pub(in super::super) end: u64,
    pub(in super::super) stream: u32,
    pub(in super::super) correlation: u32,
    pub(in super::super) what: What,
}

/// The kind of a record, and its own fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum What {
    Kernel {
        /// Where the name lies in memory.
        name: u64,
        grid: [i32; 3],
        block: [i32; 3],
        registers: u16,
        /// Static and dynamic.
        shared: [i32; 2],
        graph: u32,
    },
    Copy {
        direction: &'static str,
        bytes: u64,
    },
    Fill {
        bytes: u64,
    },
}

/// Reads a record from the bytes that begin with it; `None` if it is of another kind or cut off.
pub(super) fn read(bytes: &[u8]) -> Option<Activity> {
    let record = Record(bytes);
    match record.u32(0)? {
        KERNEL => {
            let sizes = |at| Some([record.i32(at)?, record.i32(at + 4)?, record.i32(at + 8)?]);
            let what = What::Kernel {
                name: record.u64(104)?,
                grid: sizes(52)?,
                block: sizes(64)?,
                registers: u16::from_ne_bytes(record.at(6)?),
                shared: [record.i32(76)?, record.i32(80)?],
                graph: record.u32(156)?,
            };
            record.activity(48, 92, what)
        }
        COPY => {
            let [kind] = record.at(4)?;
            record.activity(40, 44, What::Copy { direction: direction(kind), bytes: record.u64(8)? })
        }
        FILL => record.activity(40, 44, What::Fill { bytes: record.u64(8)? }),
        _ => None,
    }
}

/// Returns the name of a `CUpti_ActivityMemcpyKind`.
fn direction(kind: u8) -> &'static str {
    match kind {
        1 => "host to device",
        2 => "device to host",
        8 => "device to device",
        9 => "host to host",
        10 => "device to another device",
        _ => "of arrays",
    }
}

/// The bytes from the start of a record to the end of its buffer.
struct Record<'a>(&'a [u8]);

impl Record<'_> {
    fn at<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..at + N)?.try_into().ok()
    }

    fn u32(&self, at: usize) -> Option<u32> {
        self.at(at).map(u32::from_ne_bytes)
    }

    fn i32(&self, at: usize) -> Option<i32> {
        self.at(at).map(i32::from_ne_bytes)
    }

    fn u64(&self, at: usize) -> Option<u64> {
        self.at(at).map(u64::from_ne_bytes)
    }

    /// All records that are read have their times at the same places.
    fn activity(&self, stream: usize, correlation: usize, what: What) -> Option<Activity> {
        let (start, end) = (self.u64(16)?, self.u64(24)?);
        Some(Activity { start, end, stream: self.u32(stream)?, correlation: self.u32(correlation)?, what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes values at their places, as `offsetof` of a C compiler gives them for `cupti_activity.h` of CUDA 13.5.
    fn record(size: usize, fields: &[(usize, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0xEE; size];
        for (at, value) in fields {
            bytes[*at..at + value.len()].copy_from_slice(value);
        }
        bytes
    }

    fn kernel() -> Vec<u8> {
        let words = |values: [i32; 3]| values.map(i32::to_ne_bytes).concat();
        record(
            248,
            &[
                (0, &10_u32.to_ne_bytes()),
                (6, &168_u16.to_ne_bytes()),
                (16, &1_000_u64.to_ne_bytes()),
                (24, &5_500_u64.to_ne_bytes()),
                (48, &7_u32.to_ne_bytes()),
                (52, &words([132, 2, 1])),
                (64, &words([384, 1, 1])),
                (76, &16_i32.to_ne_bytes()),
                (80, &200_000_i32.to_ne_bytes()),
                (92, &4242_u32.to_ne_bytes()),
                (104, &0x7fff_1234_u64.to_ne_bytes()),
                (156, &3_u32.to_ne_bytes()),
            ],
        )
    }

    #[test]
    fn a_kernel_a_copy_and_a_fill_are_read() {
        let what = What::Kernel {
            name: 0x7fff_1234,
            grid: [132, 2, 1],
            block: [384, 1, 1],
            registers: 168,
            shared: [16, 200_000],
            graph: 3,
        };
        let wanted = Activity { start: 1_000, end: 5_500, stream: 7, correlation: 4242, what };
        assert_eq!(read(&kernel()), Some(wanted));

        let times: [(usize, &[u8]); 4] = [
            (16, &10_u64.to_ne_bytes()),
            (24, &20_u64.to_ne_bytes()),
            (40, &9_u32.to_ne_bytes()),
            (44, &5_u32.to_ne_bytes()),
        ];
        let bytes = 65_536_u64.to_ne_bytes();
        let copy = record(112, &[&times[..], &[(0, &1_u32.to_ne_bytes()), (4, &[1]), (8, &bytes)]].concat());
        let what = What::Copy { direction: "host to device", bytes: 65_536 };
        assert_eq!(read(&copy), Some(Activity { start: 10, end: 20, stream: 9, correlation: 5, what }));
        let fill = record(104, &[&times[..], &[(0, &2_u32.to_ne_bytes()), (8, &bytes)]].concat());
        assert_eq!(read(&fill).map(|fill| fill.what), Some(What::Fill { bytes: 65_536 }));
    }

    #[test]
    fn records_that_are_cut_off_or_of_other_kinds_are_not_read() {
        for len in 0..160 {
            assert_eq!(read(&kernel()[..len]), None, "{len} bytes");
        }
        assert!(read(&kernel()[..160]).is_some());
        for kind in [0_u32, 3, 9, 11, 22, u32::MAX] {
            let mut other = kernel();
            other[..4].copy_from_slice(&kind.to_ne_bytes());
            assert_eq!(read(&other), None, "kind {kind}");
        }
    }
}
