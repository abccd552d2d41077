# A guest in one sector. Ten times a second or so it counts: it writes the count into 64 KiB of memory, each time
# four bytes further on, adds all of that memory up, writes count and sum to the second sector of its disk, and then
# says both on the first serial line, as "TICK 0000002a 00000387". What is typed there it answers in brackets, and
# "!" has it fill 256 KiB of other memory with noise first.
# `counter.bin` is this, assembled:
#   as -o counter.o counter.s && ld -Ttext 0x7c00 --oformat binary -o counter.bin counter.o
.code16
start:
 xor %ax,%ax
 mov %ax,%ds
 mov %ax,%ss
 mov $0x7c00,%sp
 mov %dl,drive
 # 115200 baud, 8N1
 mov $0x3fb,%dx
 mov $0x80,%al
 out %al,%dx
 mov $0x3f8,%dx
 mov $1,%al
 out %al,%dx
 inc %dx
 mov $0,%al
 out %al,%dx
 mov $0x3fb,%dx
 mov $3,%al
 out %al,%dx
 # 64 KiB at 0x10000 are zero
 mov $0x1000,%ax
 mov %ax,%es
 xor %di,%di
 xor %ax,%ax
 mov $0x8000,%cx
 cld
 rep stosw
 movl $0,0x7e00
 movl $12345,0x7e08
 sti
tick:
 incl 0x7e00
 mov 0x7e00,%eax
 mov %ax,%di
 shl $2,%di
 mov %eax,%es:(%di)
 xor %ebx,%ebx
 xor %di,%di
 mov $0x4000,%cx
1: add %es:(%di),%ebx
 add $4,%di
 loop 1b
 mov %ebx,0x7e04
 mov $0x43,%ah
 mov $0,%al
 mov drive,%dl
 mov $packet,%si
 int $0x13
 mov $said,%si
 call say
 mov 0x7e00,%eax
 call hex
 mov $' ',%al
 call put
 mov 0x7e04,%eax
 call hex
 mov $end,%si
 call say
 # two ticks of the clock
 mov $2,%cx
2: hlt
 call typed
 mov 0x46c,%ax
 cmp %ax,last
 je 2b
 mov %ax,last
 loop 2b
 jmp tick
typed:
 mov $0x3fd,%dx
 in %dx,%al
 test $1,%al
 jz 3f
 mov $0x3f8,%dx
 in %dx,%al
 cmp $'!',%al
 jne 4f
 call noise
4: push %ax
 mov $'[',%al
 call put
 pop %ax
 call put
 mov $']',%al
 call put
 jmp typed
3: ret
noise:
 pusha
 push %es
 mov $0x2000,%bx
 mov 0x7e08,%eax
5: mov %bx,%es
 xor %di,%di
 mov $0x4000,%cx
6: imul $1664525,%eax,%eax
 add $1013904223,%eax
 mov %eax,%es:(%di)
 add $4,%di
 loop 6b
 add $0x1000,%bx
 cmp $0x6000,%bx
 jne 5b
 mov %eax,0x7e08
 pop %es
 popa
 ret
hex:
 mov $8,%cx
7: rol $4,%eax
 push %ax
 and $15,%al
 add $'0',%al
 cmp $'9',%al
 jbe 8f
 add $39,%al
8: call put
 pop %ax
 loop 7b
 ret
say:
 lodsb
 test %al,%al
 jz 3b
 call put
 jmp say
put:
 push %ax
 mov $0x3fd,%dx
9: in %dx,%al
 test $0x20,%al
 jz 9b
 pop %ax
 mov $0x3f8,%dx
 out %al,%dx
 ret
said: .asciz "TICK "
end: .asciz ".\r\n"
drive: .byte 0
last: .word 0
packet: .byte 16,0
 .word 1,0x7e00,0
 .quad 1
.org 510
.word 0xaa55
