//! `hca exec --namespace`: a user and mount namespace of the program's own, in which the tree stands at the paths
//! themselves. Programs that no preloaded object reaches see it, too: static ones, and those that call the kernel by
//! themselves.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount, mount_bind, mount_bind_recursive};
use rustix::process::{getgid, getuid};
use rustix::thread::UnshareFlags;
use thiserror::Error;

/// Folders that get a file system of their own, with the entries of the old one beside ours.
const FOLDERS: [(&str, &[&str]); 2] =
    [("sys/class", &["infiniband", "infiniband_verbs", "infiniband_cm"]), ("dev", &["infiniband"])];

/// The reason why there is no namespace.
#[derive(Debug, Error)]
pub(super) enum NamespaceError {
    #[error(
        "the kernel gives this user no user and mount namespace ({0}): in a container allow it (docker's \
         --security-opt seccomp=unconfined), on a host see the settings user.max_user_namespaces, \
         kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns; without --namespace only \
         static programs miss the devices' files"
    )]
    Refused(#[source] io::Error),
    #[error("can't write {}: {source}", .path.display())]
    Map { path: PathBuf, source: io::Error },
    #[error(
        "can't mount {}: {source}; in a container, parts of /sys and /dev may be locked: without --namespace only \
         static programs miss the devices' files", .path.display()
    )]
    Mount { path: PathBuf, source: io::Error },
}

/// Moves this process, which has no second thread yet, to namespaces of its own.
pub(super) fn enter() -> Result<(), NamespaceError> {
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    #[expect(deprecated, reason = "the other one is unsafe, for the sake of a flag that is not used")]
    rustix::thread::unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)
        .map_err(|e| NamespaceError::Refused(e.into()))?;
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{user} {user} 1")),
        ("gid_map", format!("{group} {group} 1")),
    ] {
        let path = Path::new("/proc/self").join(file);
        fs::write(&path, text).map_err(|source| NamespaceError::Map { path, source })?;
    }
    Ok(())
}

/// Mounts the tree at its places in the process's namespace.
pub(super) fn show(tree: &Path) -> Result<(), NamespaceError> {
    for (folder, ours) in FOLDERS {
        let at = Path::new("/").join(folder);
        let kept = tree.join("kept").join(folder);
        beside(&at, &kept, &tree.join(folder), ours)
            .map_err(|source| NamespaceError::Mount { path: at, source })?;
    }
    Ok(())
}

/// Mounts a file system at `at` that has the entries which are there, and ours.
fn beside(at: &Path, kept: &Path, tree: &Path, ours: &[&str]) -> io::Result<()> {
    fs::create_dir_all(kept)?;
    mount_bind_recursive(at, kept)?;
    mount("hca", at, "tmpfs", MountFlags::NOSUID, Some(c"mode=755"))?;
    for entry in fs::read_dir(kept)? {
        let entry = entry?;
        let (name, kind, from) = (entry.file_name(), entry.file_type()?, entry.path());
        let to = at.join(&name);
        if ours.iter().any(|ours| *ours == name) {
            continue;
        }
        if kind.is_symlink() {
            symlink(fs::read_link(&from)?, &to)?;
        } else if kind.is_dir() {
            fs::create_dir(&to)?;
            mount_bind_recursive(&from, &to)?;
        } else {
            File::create(&to)?;
            mount_bind(&from, &to)?;
        }
    }
    for name in ours {
        let to = at.join(name);
        fs::create_dir(&to)?;
        mount_bind(tree.join(name), &to)?;
    }
    Ok(())
}
