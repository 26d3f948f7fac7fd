"""System calls that sandboxed code may make, by family, with their numbers.

The list contains the calls that interpreters, compilers and language runtimes use. All others are refused, those of
future kernels included. `seccomp` lists the calls that are allowed only with certain arguments.
"""

from __future__ import annotations

_TABLE = {
    "descriptors": """
        read 0 63; write 1 64; readv 19 65; writev 20 66; pread64 17 67; pwrite64 18 68; preadv 295 69; pwritev 296 70;
        preadv2 327 286; pwritev2 328 287; open 2 -; openat 257 56; openat2 437 437; creat 85 -; close 3 57;
        close_range 436 436; lseek 8 62; dup 32 23; dup2 33 -; dup3 292 24; pipe 22 -; pipe2 293 59; poll 7 -;
        ppoll 271 73; select 23 -; pselect6 270 72; epoll_create 213 -; epoll_create1 291 20; epoll_ctl 233 21;
        epoll_wait 232 -; epoll_pwait 281 22; epoll_pwait2 441 441; eventfd 284 -; eventfd2 290 19; signalfd 282 -;
        signalfd4 289 74; timerfd_create 283 85; timerfd_settime 286 86; timerfd_gettime 287 87; sendfile 40 71;
        splice 275 76; tee 276 77; vmsplice 278 75; copy_file_range 326 285; fsync 74 82; fdatasync 75 83;
        sync_file_range 277 84; ftruncate 77 46; truncate 76 45; fallocate 285 47; fadvise64 221 223; readahead 187 213;
        flock 73 32
    """,
    "names": """
        stat 4 -; fstat 5 80; lstat 6 -; newfstatat 262 79; statx 332 291; access 21 -; faccessat 269 48;
        faccessat2 439 439; readlink 89 -; readlinkat 267 78; getdents 78 -; getdents64 217 61; getcwd 79 17;
        chdir 80 49; fchdir 81 50; rename 82 -; renameat 264 38; renameat2 316 276; mkdir 83 -; mkdirat 258 34;
        rmdir 84 -; link 86 -; linkat 265 37; unlink 87 -; unlinkat 263 35; symlink 88 -; symlinkat 266 36; mknod 133 -;
        mknodat 259 33; umask 95 166; statfs 137 43; fstatfs 138 44; getxattr 191 8; lgetxattr 192 9; fgetxattr 193 10;
        listxattr 194 11; llistxattr 195 12; flistxattr 196 13
    """,
    "metadata": """
        chmod 90 -; fchmod 91 52; fchmodat 268 53; fchmodat2 452 452; chown 92 -; fchown 93 55; lchown 94 -;
        fchownat 260 54; utime 132 -; utimes 235 -; futimesat 261 -; utimensat 280 88; setxattr 188 5; lsetxattr 189 6;
        fsetxattr 190 7; removexattr 197 14; lremovexattr 198 15; fremovexattr 199 16
    """,
    "memory": """
        mmap 9 222; munmap 11 215; mprotect 10 226; mremap 25 216; msync 26 227; mincore 27 232; madvise 28 233;
        brk 12 214; mlock 149 228; mlock2 325 284; munlock 150 229; mlockall 151 230; munlockall 152 231;
        membarrier 324 283; pkey_alloc 330 289; pkey_free 331 290; pkey_mprotect 329 288; mseal 462 462
    """,
    "processes": """
        fork 57 -; vfork 58 -; execve 59 221; execveat 322 281; exit 60 93; exit_group 231 94; wait4 61 260;
        waitid 247 95; kill 62 129; tkill 200 130; tgkill 234 131; pidfd_open 434 434; pidfd_send_signal 424 424;
        getpid 39 172; gettid 186 178; getppid 110 173; getpgrp 111 -; getpgid 121 155; setpgid 109 154; setsid 112 157;
        getsid 124 156; set_tid_address 218 96; set_robust_list 273 99; get_robust_list 274 100; futex 202 98;
        futex_waitv 449 449; futex_wake 454 454; futex_wait 455 455; futex_requeue 456 456; rseq 334 293;
        arch_prctl 158 -; rt_sigaction 13 134; rt_sigprocmask 14 135; rt_sigreturn 15 139; rt_sigpending 127 136;
        rt_sigtimedwait 128 137; rt_sigqueueinfo 129 138; rt_tgsigqueueinfo 297 240; rt_sigsuspend 130 133;
        sigaltstack 131 132; restart_syscall 219 128; pause 34 -
    """,
    "time": """
        alarm 37 -; getitimer 36 102; setitimer 38 103; nanosleep 35 101; clock_nanosleep 230 115;
        clock_gettime 228 113; clock_getres 229 114; gettimeofday 96 169; time 201 -; times 100 153;
        timer_create 222 107; timer_settime 223 110; timer_gettime 224 108; timer_getoverrun 225 109;
        timer_delete 226 111
    """,
    "settings": """
        sched_yield 24 124; sched_getaffinity 204 123; sched_getparam 143 121; sched_getscheduler 145 120;
        sched_getattr 315 275; sched_get_priority_max 146 125; sched_get_priority_min 147 126;
        sched_rr_get_interval 148 127; getpriority 140 141; getrlimit 97 163; setrlimit 160 164; getrusage 98 165;
        ioprio_get 252 31; sysinfo 99 179; uname 63 160; getcpu 309 168; getrandom 318 278
    """,
    "users": """
        getuid 102 174; geteuid 107 175; getgid 104 176; getegid 108 177; getresuid 118 148; getresgid 120 150;
        getgroups 115 158; setuid 105 146; setgid 106 144; setreuid 113 145; setregid 114 143; setresuid 117 147;
        setresgid 119 149; setfsuid 122 151; setfsgid 123 152; setgroups 116 159; capget 125 90; capset 126 91
    """,
    "sockets": """
        connect 42 203; accept 43 202; accept4 288 242; bind 49 200; listen 50 201; sendto 44 206; recvfrom 45 207;
        sendmsg 46 211; recvmsg 47 212; sendmmsg 307 269; recvmmsg 299 243; shutdown 48 210; getsockname 51 204;
        getpeername 52 205; getsockopt 55 209
    """,
    "machine": """
        chroot 161 51; inotify_init 253 -; inotify_init1 294 26; inotify_add_watch 254 27; inotify_rm_watch 255 28;
        shmget 29 194; shmat 30 196; shmctl 31 195; shmdt 67 197; semget 64 190; semop 65 193; semtimedop 220 192;
        semctl 66 191; msgget 68 186; msgsnd 69 189; msgrcv 70 188; msgctl 71 187; ptrace 101 117; personality 135 92
    """,
    "conditional": """
        clone 56 220; socket 41 198; socketpair 53 199; setsockopt 54 208; fcntl 72 25; ioctl 16 29; prctl 157 167;
        prlimit64 302 261; sched_setaffinity 203 122; sched_setattr 314 274; sched_setparam 142 118;
        sched_setscheduler 144 119; setpriority 141 140; ioprio_set 251 30; mount 165 40; umount2 166 39; sync 162 81;
        syncfs 306 267; clone3 435 435; memfd_create 319 279; memfd_secret 447 447; seccomp 317 277;
        landlock_create_ruleset 444 444; landlock_add_rule 445 445; landlock_restrict_self 446 446;
        get_mempolicy 239 236; set_mempolicy 238 237; mbind 237 235
    """,
}
"""Name, number on x86_64 and number on aarch64 ("-": the call does not exist there), from the kernel's syscall_64.tbl
and asm-generic/unistd.h. The family "conditional" has calls that `seccomp` treats one by one."""

CONDITIONAL = "conditional"
METADATA = "metadata"
"""Calls that change modes, owners, times and extended attributes of files."""

MACHINE = "machine"
"""Calls that boxes, as whole machines, may make, but executions may not."""

COLUMNS = {"x86_64": 1, "aarch64": 2}
"""Column of an architecture in the table."""


def numbers(family: str, machine: str) -> dict[str, int]:
    """Return the number of each call of a family on an architecture, without those that do not exist there."""
    entries = (entry.split() for entry in _TABLE[family].split(";"))
    column = COLUMNS[machine]
    return {entry[0]: int(entry[column]) for entry in entries if entry[column] != "-"}


def families() -> tuple[str, ...]:
    """Return the families of calls that are allowed with any arguments."""
    return tuple(family for family in _TABLE if family != CONDITIONAL)
