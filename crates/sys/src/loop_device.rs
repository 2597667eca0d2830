//! A block device over a file, which goes with its last user from the moment that it is there.
#![allow(unsafe_code, reason = "an ioctl is as safe as its number and its memory match")]

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, ioctl};

/// Gives out devices.
const CONTROL: &str = "/dev/loop-control";
/// Asks for the number of a device that is free.
const LOOP_CTL_GET_FREE: Opcode = 0x4c82;
/// Makes a device that there was not before, and answers with its number.
const LOOP_CTL_ADD: Opcode = 0x4c80;
/// Puts a device over a file, with all that is to hold for it (Linux 5.8).
const LOOP_CONFIGURE: Opcode = 0x4c0a;
/// The device goes with its last user.
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// How often a device is asked for while others are faster, and the time between.
const TRIES: u32 = 50;
/// So often it is the one that is free; then it is a new one.
const FREE_TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// A `struct loop_config`, as the kernel lays it out; the descriptor comes first.
type LoopConfig = [u8; 304];
/// Where it has the flags.
const FLAGS: usize = 60;

/// A device, for as long as it is held here or in use elsewhere (mounted). So is the file's description with all of its
/// locks.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    _held: File,
}

impl LoopDevice {
    /// Over a file that is open for reading and writing.
    ///
    /// # Errors
    /// There are no loop devices, or the kernel is older than 5.8 (EINVAL).
    pub fn over(file: &File) -> io::Result<Self> {
        let control = OpenOptions::new().read(true).write(true).open(CONTROL)?;
        let mut tries = 0;
        loop {
            let which = if tries < FREE_TRIES { Ask::Free } else { Ask::New };
            // SAFETY: neither number takes memory.
            let number = unsafe { ioctl(&control, which) }?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = OpenOptions::new().read(true).write(true).open(&path)?;
            match configure(&device, file) {
                // Another process was given it too, and was faster; or has it open exclusively, with nothing over it
                // yet: then no other one is called free.
                Err(Errno::BUSY) if tries + 1 < TRIES => {
                    tries += 1;
                    std::thread::sleep(PAUSE);
                }
                done => {
                    done?;
                    // libblkid goes by what it has written down of the device before, for minutes, if this is not newer:
                    // another pool's UUID. There is nothing to be done where the node cannot be changed.
                    let _told = device.set_modified(SystemTime::now());
                    return Ok(Self { path, _held: device });
                }
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn configure(device: &File, file: &File) -> rustix::io::Result<()> {
    let mut config: LoopConfig = [0; 304];
    config[..4].copy_from_slice(&file.as_raw_fd().to_ne_bytes());
    config[FLAGS..FLAGS + 4].copy_from_slice(&LO_FLAGS_AUTOCLEAR.to_ne_bytes());
    // SAFETY: the number reads 304 bytes, which `config` has.
    let request = unsafe { Setter::<LOOP_CONFIGURE, LoopConfig>::new(config) };
    // SAFETY: as above; the kernel reads memory only.
    unsafe { ioctl(device.as_fd(), request) }
}

/// Asks for the number of a device; takes no memory.
enum Ask {
    Free,
    New,
}

// SAFETY: neither number reads or writes memory; the answer is what the call returns.
unsafe impl Ioctl for Ask {
    type Output = i32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        match self {
            Self::Free => LOOP_CTL_GET_FREE,
            Self::New => LOOP_CTL_ADD,
        }
    }

    fn as_ptr(&mut self) -> *mut c_void {
        match self {
            Self::Free => std::ptr::null_mut(),
            // -1: whichever number is next.
            Self::New => std::ptr::without_provenance_mut(usize::MAX),
        }
    }

    unsafe fn output_from_ptr(number: IoctlOutput, _: *mut c_void) -> rustix::io::Result<i32> {
        Ok(number)
    }
}
