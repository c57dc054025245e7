//! Programs of the system that preload the library.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The shared object of this crate, beside the tests.
fn library() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.parent().unwrap().join("libhca_paths.so")
}

/// A folder with the files of a device, which goes with the test.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("hca-paths-{name}-{}", std::process::id()));
        let device = root.join("sys/class/infiniband/rxe0");
        fs::create_dir_all(device.join("ports/1")).unwrap();
        fs::write(device.join("ports/1/state"), "4: ACTIVE\n").unwrap();
        symlink("ports/1", device.join("port")).unwrap();
        fs::create_dir_all(root.join("dev/infiniband")).unwrap();
        symlink("/dev/null", root.join("dev/infiniband/uverbs-rxe0")).unwrap();
        Self(root)
    }
}
impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What a shell's commands say, with the library and the tree, or without a tree.
fn said(tree: Option<&Path>, script: &str) -> String {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).env("LD_PRELOAD", library()).env("LC_ALL", "C").env_remove("HCA_PATHS");
    if let Some(tree) = tree {
        shell.env("HCA_PATHS", tree);
    }
    let out = shell.output().unwrap();
    String::from_utf8_lossy(&[&out.stdout[..], &out.stderr].concat()).into_owned()
}

#[test]
fn programs_find_the_files_of_the_tree_by_every_call() {
    let tree = Tree::new("found");
    let device = "/sys/class/infiniband/rxe0";
    for (script, expected) in [
        (format!("cat {device}/ports/1/state"), "4: ACTIVE\n"),
        ("ls /sys/class/infiniband".into(), "rxe0\n"),
        ("ls /sys/class/infiniband/".into(), "rxe0\n"),
        (format!("test -e {device} && echo there"), "there\n"),
        (format!("readlink {device}/port"), "ports/1\n"),
        (format!("stat -c %s {device}/ports/1/state"), "10\n"),
        (format!("stat -L -c %F {device}/port"), "directory\n"),
        (
            "test -c /dev/infiniband/uverbs-rxe0 && test -w /dev/infiniband/uverbs-rxe0 && echo yes".into(),
            "yes\n",
        ),
        (format!("find {device} -name state -type f | wc -l"), "1\n"),
        (format!("cd {device}/ports && cat 1/state"), "4: ACTIVE\n"),
        (format!("head -c 1 <{device}/ports/1/state"), "4"),
        // A device's file is no link to the program, and what leads elsewhere is not led.
        ("test -L /dev/infiniband/uverbs-rxe0 || echo device".into(), "device\n"),
        ("ls -l /dev/infiniband | grep -c '^crw-rw-rw-.* uverbs-rxe0$'".into(), "1\n"),
        ("readlink /dev/infiniband/uverbs-rxe0 || echo none".into(), "none\n"),
        ("find /dev/infiniband -type c".into(), "/dev/infiniband/uverbs-rxe0\n"),
        ("find /dev/infiniband -type l".into(), ""),
        (format!("find {device} -type l"), "/sys/class/infiniband/rxe0/port\n"),
        (format!("stat -f -c %n {device}"), "/sys/class/infiniband/rxe0\n"),
        (
            "test -e /dev/infiniband/../null && test -d /sys//class/infiniband/../net && echo yes".into(),
            "yes\n",
        ),
        ("cat /sys//class/./infiniband/rxe0/../rxe0/ports/1/state".into(), "4: ACTIVE\n"),
    ] {
        assert_eq!(said(Some(&tree.0), &script), expected, "{script}");
    }
    // This program follows links by itself, one by one.
    let real = said(Some(&tree.0), &format!("realpath {device}/port"));
    assert_eq!(real, format!("{device}/ports/1\n"));
}

/// Calls that no usual program of a shell makes.
#[test]
fn rarer_calls_are_led_as_well() {
    const NAME: &str = "rarer_calls_are_led_as_well";
    let (device, state) = (c"/sys/class/infiniband/rxe0/ports", c"/sys/class/infiniband/rxe0/ports/1/state");
    if std::env::var_os("HCA_PATHS").is_some() {
        // SAFETY: names that end with a zero, and room for what is told or read.
        unsafe {
            let mut list: *mut *mut libc::dirent = std::ptr::null_mut();
            let found = scandirat(libc::AT_FDCWD, device.as_ptr(), &raw mut list, None, None);
            let mut told: libc::statvfs = std::mem::zeroed();
            let file = libc::fopen(c"/dev/null".as_ptr(), c"r".as_ptr());
            let file = libc::freopen(state.as_ptr(), c"r".as_ptr(), file);
            let first = if file.is_null() { 0 } else { libc::fgetc(file) };
            println!("found {found} {} {first}", libc::statvfs(state.as_ptr(), &raw mut told));
        }
        return;
    }
    let tree = Tree::new("rarer");
    let own = std::env::current_exe().unwrap();
    let said = said(Some(&tree.0), &format!("{} --exact --nocapture {NAME}", own.display()));
    // `.`, `..` and `1`.
    assert!(said.contains(&format!("found 3 0 {}", u32::from(b'4'))), "{said}");
}
unsafe extern "C" {
    fn scandirat(
        at: libc::c_int,
        path: *const libc::c_char,
        list: *mut *mut *mut libc::dirent,
        filter: Option<extern "C" fn(*const libc::dirent) -> libc::c_int>,
        order: Option<extern "C" fn(*const *const libc::dirent, *const *const libc::dirent) -> libc::c_int>,
    ) -> libc::c_int;
}

#[test]
fn other_paths_and_programs_without_a_tree_are_as_they_are() {
    let tree = Tree::new("others");
    for (tree, script) in [
        (Some(&*tree.0), "ls /sys/class/net"),
        (Some(&*tree.0), "cat /sys/class/infinibandx /nowhere; stat /etc/passwd; readlink /proc/self/cwd"),
        (None, "ls /sys/class/infiniband; test -e /dev/infiniband && echo there"),
    ] {
        let plain = Command::new("sh").args(["-c", script]).env("LC_ALL", "C").output().unwrap();
        let plain = String::from_utf8_lossy(&[&plain.stdout[..], &plain.stderr].concat()).into_owned();
        assert_eq!(said(tree, script), plain, "{script}");
    }
}

#[test]
fn a_path_that_gets_too_long_is_not_led() {
    let long = "x".repeat(4000);
    let tree = PathBuf::from(format!("/tmp/{}", "y/".repeat(200)));
    let said = said(Some(&tree), &format!("cat /sys/class/infiniband/{long}"));
    assert!(said.contains("No such file") || said.contains("File name too long"), "{said}");
}

#[test]
fn real_paths_are_those_that_the_program_knows() {
    let names = [
        "/sys/class/infiniband/rxe0/port",
        "/dev/infiniband/./uverbs-rxe0",
        "/dev/infiniband/uverbs-none",
        "/dev/infiniband/uverbs-rxe0/",
        "/dev/infiniband",
    ];
    if std::env::var_os("HCA_PATHS").is_some() {
        // The C library follows the links of the tree.
        println!("real {:?}", names.map(|name| fs::canonicalize(name).map_err(|e| e.raw_os_error())));
        let of_device = fs::File::options().read(true).custom_flags(libc::O_NOFOLLOW).open(names[1]);
        println!("opened {:?}", of_device.map(|file| file.metadata().unwrap().file_type().is_char_device()));
        return;
    }
    let tree = Tree::new("real");
    let own = std::env::current_exe().unwrap();
    let script = format!("{} --exact --nocapture real_paths_are_those_that_the_program_knows", own.display());
    let said = said(Some(&tree.0), &script);
    let real = r#"real [Ok("/sys/class/infiniband/rxe0/ports/1"), Ok("/dev/infiniband/uverbs-rxe0"), Err(Some(2)), Err(Some(20)), Ok("/dev/infiniband")]"#;
    assert!(said.contains(real), "{said}");
    assert!(said.contains("opened Ok(true)"), "{said}");
}
