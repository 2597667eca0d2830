//! A loop device over a file, set to auto-clear when its last user closes it.
#![allow(unsafe_code, reason = "an ioctl is as safe as its number and its memory match")]

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, ioctl};

/// Control device of the loop driver.
const CONTROL: &str = "/dev/loop-control";
/// Returns the number of a free device.
const LOOP_CTL_GET_FREE: Opcode = 0x4c82;
/// Makes a new device and returns its number.
const LOOP_CTL_ADD: Opcode = 0x4c80;
/// Configures a device in one call (Linux 5.8).
const LOOP_CONFIGURE: Opcode = 0x4c0a;
/// Detach the file when the last user closes the device.
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// Attempts to get a device while other processes win it.
const TRIES: u32 = 50;
/// The first attempts take a free device, later ones make a new one.
const FREE_TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// A `struct loop_config`; its first field is the descriptor.
type LoopConfig = [u8; 304];
/// Byte offset of its flags.
const FLAGS: usize = 60;

/// A loop device. It, and the file's open file description with all locks, lasts while this is held or the device is in
/// use (mounted).
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    _held: File,
}

impl LoopDevice {
    /// Sets up a device over a file that is open for reading and writing.
    ///
    /// # Errors
    ///
    /// There are no loop devices, or the kernel is older than 5.8 (EINVAL).
    pub fn over(file: &File) -> io::Result<Self> {
        let control = OpenOptions::new().read(true).write(true).open(CONTROL)?;
        let mut tries = 0;
        loop {
            let which = if tries < FREE_TRIES { Ask::Free } else { Ask::New };
            // SAFETY: neither opcode takes memory.
            let number = unsafe { ioctl(&control, which) }?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = OpenOptions::new().read(true).write(true).open(&path)?;
            match configure(&device, file) {
                // Another process or thread got the same device first: the next free one is asked for at once. Or it holds it open
                // exclusively without a file behind it, so that no other device is reported as free.
                Err(Errno::BUSY) if tries + 1 < TRIES => {
                    tries += 1;
                    if tries >= FREE_TRIES {
                        std::thread::sleep(PAUSE);
                    }
                }
                done => {
                    done?;
                    // For minutes libblkid serves its cached data about the device, another pool's UUID, unless this
                    // time is newer. A failure is ignored: nothing can be done where the node cannot be changed.
                    let _set = device.set_modified(SystemTime::now());
                    return Ok(Self { path, _held: device });
                }
            }
        }
    }

    /// Path of the device.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn configure(device: &File, file: &File) -> rustix::io::Result<()> {
    let mut config: LoopConfig = [0; 304];
    config[..4].copy_from_slice(&file.as_raw_fd().to_ne_bytes());
    config[FLAGS..FLAGS + 4].copy_from_slice(&LO_FLAGS_AUTOCLEAR.to_ne_bytes());
    // SAFETY: the opcode reads 304 bytes, which `config` has.
    let request = unsafe { Setter::<LOOP_CONFIGURE, LoopConfig>::new(config) };
    // SAFETY: as above; the kernel reads memory only.
    unsafe { ioctl(device.as_fd(), request) }
}

/// Requests for a device number; they take no memory.
enum Ask {
    Free,
    New,
}

// SAFETY: neither opcode reads or writes memory; the number is the call's return value.
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
            // -1: the kernel chooses the number.
            Self::New => std::ptr::without_provenance_mut(usize::MAX),
        }
    }

    unsafe fn output_from_ptr(number: IoctlOutput, _: *mut c_void) -> rustix::io::Result<i32> {
        Ok(number)
    }
}
