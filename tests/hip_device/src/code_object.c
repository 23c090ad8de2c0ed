/* Code objects: checks of the AMDGPU ELF, its target against a device, its note and symbols.
 *
 * Facts: AMDGPUUsage, "ELF Code Object" (header, EF_AMDGPU_* flags, target IDs, notes).
 */
#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

enum {
    MACHINE_AMDGPU = 224,
    OSABI_AMDGPU_HSA = 64,
    ABI_VERSION_V4 = 2,
    ABI_VERSION_V6 = 4,
    FLAGS_MACH = 0xff,
    FLAGS_XNACK_SHIFT = 8,
    FLAGS_SRAMECC_SHIFT = 10,
    NOTE_METADATA = 32,
};

static const uint64_t largest_load = 1ULL << 31;

static bool within(uint64_t offset, uint64_t size, uint64_t limit) {
    return offset <= limit && size <= limit - offset;
}

static hipError_t check_header(const Elf64_Ehdr *header) {
    bool sound = memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 &&
                 header->e_ident[EI_CLASS] == ELFCLASS64 &&
                 header->e_ident[EI_DATA] == ELFDATA2LSB &&
                 header->e_ident[EI_OSABI] == OSABI_AMDGPU_HSA &&
                 header->e_ident[EI_ABIVERSION] >= ABI_VERSION_V4 &&
                 header->e_ident[EI_ABIVERSION] <= ABI_VERSION_V6 &&
                 header->e_machine == MACHINE_AMDGPU && header->e_type == ET_DYN &&
                 header->e_phentsize == sizeof(Elf64_Phdr) && header->e_phnum > 0 &&
                 header->e_shentsize == sizeof(Elf64_Shdr) && header->e_shnum > 0;
    return sound ? hipSuccess : hipErrorInvalidImage;
}

/* A feature that the code leaves to any setting runs on both; otherwise the two must agree. */
static bool feature_matches(uint32_t code, Feature device) {
    switch ((Feature)code) {
    case FEATURE_ANY:
        return device != FEATURE_UNSUPPORTED;
    case FEATURE_UNSUPPORTED:
    case FEATURE_OFF:
    case FEATURE_ON:
        break;
    }
    return code == (uint32_t)device;
}

static hipError_t check_target(uint32_t flags, const Device *device) {
    bool matches = (flags & FLAGS_MACH) == device->arch->mach &&
                   feature_matches(flags >> FLAGS_XNACK_SHIFT & 3, device->xnack) &&
                   feature_matches(flags >> FLAGS_SRAMECC_SHIFT & 3, device->sramecc);
    return matches ? hipSuccess : hipErrorNoBinaryForGpu;
}

/* The image ends where its headers, sections and segments end, whichever is last. */
static hipError_t measure(const uint8_t *image, uint64_t available, const Elf64_Ehdr *header,
                          uint64_t *size) {
    uint64_t end = sizeof *header;
    uint64_t program_end = (uint64_t)header->e_phnum * sizeof(Elf64_Phdr);
    uint64_t section_end = (uint64_t)header->e_shnum * sizeof(Elf64_Shdr);
    if (!within(header->e_phoff, program_end, available) ||
        !within(header->e_shoff, section_end, available)) {
        return hipErrorInvalidImage;
    }
    program_end += header->e_phoff;
    section_end += header->e_shoff;
    end = program_end > end ? program_end : end;
    end = section_end > end ? section_end : end;
    for (unsigned i = 0; i < header->e_phnum; i++) {
        Elf64_Phdr segment;
        memcpy(&segment, image + header->e_phoff + i * sizeof segment, sizeof segment);
        if (!within(segment.p_offset, segment.p_filesz, available)) {
            return hipErrorInvalidImage;
        }
        uint64_t segment_end = segment.p_offset + segment.p_filesz;
        end = segment_end > end ? segment_end : end;
    }
    *size = end;
    return hipSuccess;
}

static Elf64_Ehdr header_of(const CodeObject *object) {
    Elf64_Ehdr header;
    memcpy(&header, object->image, sizeof header);
    return header;
}

static Elf64_Phdr segment_at(const CodeObject *object, unsigned index) {
    Elf64_Ehdr header = header_of(object);
    Elf64_Phdr segment;
    memcpy(&segment, object->image + header.e_phoff + index * sizeof segment, sizeof segment);
    return segment;
}

static bool section_at(const CodeObject *object, unsigned index, Elf64_Shdr *section) {
    Elf64_Ehdr header = header_of(object);
    if (index >= header.e_shnum) {
        return false;
    }
    memcpy(section, object->image + header.e_shoff + index * sizeof *section, sizeof *section);
    return section->sh_type == SHT_NOBITS ||
           within(section->sh_offset, section->sh_size, object->image_size);
}

static hipError_t read_notes(CodeObject *object, const Elf64_Phdr *segment) {
    const uint8_t *notes = object->image + segment->p_offset;
    uint64_t at = 0;
    while (within(at, sizeof(Elf64_Nhdr), segment->p_filesz)) {
        Elf64_Nhdr note;
        memcpy(&note, notes + at, sizeof note);
        uint64_t name = at + sizeof note;
        uint64_t description = name + ((uint64_t)note.n_namesz + 3) / 4 * 4;
        uint64_t end = description + ((uint64_t)note.n_descsz + 3) / 4 * 4;
        if (!within(name, note.n_namesz, segment->p_filesz) ||
            !within(description, note.n_descsz, segment->p_filesz)) {
            return hipErrorInvalidImage;
        }
        bool amdgpu = note.n_namesz == 7 && memcmp(notes + name, "AMDGPU", 7) == 0;
        if (amdgpu && note.n_type == NOTE_METADATA) {
            return metadata_read(notes + description, note.n_descsz, object);
        }
        at = end;
    }
    return hipSuccess;
}

static hipError_t read_segments(CodeObject *object) {
    Elf64_Ehdr header = header_of(object);
    for (unsigned i = 0; i < header.e_phnum; i++) {
        Elf64_Phdr segment = segment_at(object, i);
        if (segment.p_type == PT_NOTE && object->kernels == NULL) {
            hipError_t status = read_notes(object, &segment);
            if (status != hipSuccess) {
                return status;
            }
        }
        if (segment.p_type == PT_LOAD) {
            if (segment.p_filesz > segment.p_memsz ||
                !within(segment.p_vaddr, segment.p_memsz, largest_load)) {
                return hipErrorInvalidImage;
            }
            uint64_t end = segment.p_vaddr + segment.p_memsz;
            object->load_size = end > object->load_size ? end : object->load_size;
        }
    }
    return object->kernels == NULL ? hipErrorInvalidImage : hipSuccess;
}

static const Kernel *kernel_of_symbol(const CodeObject *object, const char *symbol) {
    for (uint32_t i = 0; i < object->kernel_count; i++) {
        if (strcmp(object->kernels[i].symbol, symbol) == 0) {
            return &object->kernels[i];
        }
    }
    return NULL;
}

static hipError_t read_symbols(CodeObject *object) {
    enum { DESCRIPTOR_SIZE = 64 };
    Elf64_Ehdr header = header_of(object);
    Elf64_Shdr table, strings;
    unsigned index = 0;
    for (; index < header.e_shnum; index++) {
        if (section_at(object, index, &table) && table.sh_type == SHT_DYNSYM) {
            break;
        }
    }
    if (index == header.e_shnum || !section_at(object, table.sh_link, &strings) ||
        strings.sh_type != SHT_STRTAB || strings.sh_size == 0 ||
        object->image[strings.sh_offset + strings.sh_size - 1] != '\0') {
        return hipErrorInvalidImage;
    }
    uint64_t count = table.sh_size / sizeof(Elf64_Sym);
    uint32_t descriptors = 0;
    object->globals = calloc(count + 1, sizeof *object->globals);
    if (object->globals == NULL) {
        return hipErrorOutOfMemory;
    }
    for (uint64_t i = 0; i < count; i++) {
        Elf64_Sym symbol;
        memcpy(&symbol, object->image + table.sh_offset + i * sizeof symbol, sizeof symbol);
        if (symbol.st_name >= strings.sh_size) {
            return hipErrorInvalidImage;
        }
        if (ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT || symbol.st_shndx == SHN_UNDEF) {
            continue;
        }
        const char *name = (const char *)object->image + strings.sh_offset + symbol.st_name;
        if (!within(symbol.st_value, symbol.st_size, object->load_size)) {
            return hipErrorInvalidImage;
        }
        if (kernel_of_symbol(object, name) != NULL) {
            if (symbol.st_size != DESCRIPTOR_SIZE) {
                return hipErrorInvalidImage;
            }
            descriptors++;
            continue;
        }
        Global *global = &object->globals[object->global_count];
        *global = (Global){
            .name = strdup(name), .address = symbol.st_value, .size = symbol.st_size};
        if (global->name == NULL) {
            return hipErrorOutOfMemory;
        }
        object->global_count++;
    }
    return descriptors == object->kernel_count ? hipSuccess : hipErrorInvalidImage;
}

hipError_t code_object_read(const void *image, uint64_t available, const Device *device,
                            CodeObject *object) {
    *object = (CodeObject){0};
    Elf64_Ehdr header;
    if (available < sizeof header) {
        return hipErrorInvalidImage;
    }
    memcpy(&header, image, sizeof header);
    hipError_t status = check_header(&header);
    if (status == hipSuccess) {
        status = check_target(header.e_flags, device);
    }
    if (status == hipSuccess) {
        status = measure(image, available, &header, &object->image_size);
    }
    if (status != hipSuccess) {
        return status;
    }
    object->image = malloc(object->image_size);
    if (object->image == NULL) {
        return hipErrorOutOfMemory;
    }
    memcpy(object->image, image, object->image_size);
    status = read_segments(object);
    if (status == hipSuccess) {
        status = read_symbols(object);
    }
    if (status != hipSuccess) {
        code_object_free(object);
        return status;
    }
    sha256(object->image, object->image_size, object->sha256);
    return hipSuccess;
}

void code_object_load(const CodeObject *object, uint8_t *base) {
    Elf64_Ehdr header = header_of(object);
    memset(base, 0, object->load_size);
    for (unsigned i = 0; i < header.e_phnum; i++) {
        Elf64_Phdr segment = segment_at(object, i);
        if (segment.p_type == PT_LOAD) {
            memcpy(base + segment.p_vaddr, object->image + segment.p_offset, segment.p_filesz);
        }
    }
}

void code_object_free(CodeObject *object) {
    for (uint32_t i = 0; i < object->kernel_count; i++) {
        free(object->kernels[i].name);
        free(object->kernels[i].symbol);
        free(object->kernels[i].arguments);
        free(object->kernels[i].hidden);
    }
    for (uint32_t i = 0; i < object->global_count; i++) {
        free(object->globals[i].name);
    }
    free(object->kernels);
    free(object->globals);
    free(object->image);
    *object = (CodeObject){0};
}
