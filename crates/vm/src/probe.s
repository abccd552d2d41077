# A boot sector that says "64" on the first serial line, from 64-bit code behind page tables of its own:
# what a machine on which KVM does not really work never gets to. `probe.bin` is this, assembled:
#   as -o probe.o probe.s && ld -Ttext 0x7c00 --oformat binary -o probe.bin probe.o
.code16
start: cli
 xor %ax,%ax
 mov %ax,%ds
 mov %ax,%es
 mov %ax,%ss
 mov $0x7c00,%sp
 mov $0x1000,%di
 mov $0x1800,%cx
 cld
 rep stosw
 movl $0x2003,0x1000
 movl $0x3003,0x2000
 movl $0x83,0x3000
 mov %cr4,%eax
 or $0x20,%eax
 mov %eax,%cr4
 mov $0x1000,%eax
 mov %eax,%cr3
 mov $0xc0000080,%ecx
 rdmsr
 or $0x100,%eax
 wrmsr
 mov %cr0,%eax
 or $0x80000001,%eax
 mov %eax,%cr0
 lgdt gdtr
 ljmp $8,$long
.code64
long: mov $0x3f8,%edx
 mov $'6',%al
 out %al,%dx
 mov $'4',%al
 out %al,%dx
1: hlt
 jmp 1b
.align 8
gdt: .quad 0
 .quad 0x00209a0000000000
gdtr: .word 15
 .long gdt
.org 510
.word 0xaa55
