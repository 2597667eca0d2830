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
/// Puts a device over a file, with all that is to hold for it (Linux 5.8).
const LOOP_CONFIGURE: Opcode = 0x4c0a;
/// The device goes with its last user.
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// How often a device is asked for while others are faster, and the time between.
const TRIES: u32 = 50;
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
    /// There are no loop devices, none is free, somebody keeps the free one to himself (EBUSY), or the kernel is older than
    /// 5.8 (EINVAL).
    pub fn over(file: &File) -> io::Result<Self> {
        let control = OpenOptions::new().read(true).write(true).open(CONTROL)?;
        let mut tries = TRIES;
        loop {
            // SAFETY: the number takes no memory.
            let number = unsafe { ioctl(&control, Free) }?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = OpenOptions::new().read(true).write(true).open(&path)?;
            match configure(&device, file) {
                // Somebody else was given it too, and was faster; or has it open for himself alone, and nothing over it
                // yet: then no other one is given out.
                Err(Errno::BUSY) if tries > 1 => {
                    tries -= 1;
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

/// Answers with a number, and takes nothing.
struct Free;

// SAFETY: the number neither reads nor writes memory; its answer is what the call returns.
unsafe impl Ioctl for Free {
    type Output = i32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(number: IoctlOutput, _: *mut c_void) -> rustix::io::Result<i32> {
        Ok(number)
    }
}
