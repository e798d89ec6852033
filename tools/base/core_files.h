// Keeps what this process knows out of core files.
#pragma once

namespace convene {

// From now on the kernel writes no core file of this process, and gives none to the program that
// /proc/sys/kernel/core_pattern may name: a core file has the whole memory, secrets too, and is
// often kept where others read it. Call it before a secret is read, while no other thread starts
// programs. Other processes of this user see /proc/PID as before.
void LeaveNoCoreFile();

// For a program that this process starts, between fork or vfork and execve: the child gets the
// limit of core files that this process had before LeaveNoCoreFile; without such a call nothing
// changes. Only one system call.
void RestoreCoreLimit();

}  // namespace convene
