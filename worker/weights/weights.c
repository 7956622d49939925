// SPDX-License-Identifier: Apache-2.0
#include "worker/weights/weights.h"

#include "common/bounds.h"
#include "common/hash.h"
#include "common/mapped_file.h"
#include "common/memory.h"
#include "worker/weights/model_path.h"
#include "worker/weights/safetensors.h"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

struct weights_file {
    char *path;
    struct mapped_file map;
    struct safetensors *safetensors;    // NULL in a GGUF model
};

struct weights {
    enum weights_container container;
    struct weights_file files[BOUND_WEIGHT_FILES];
    uint32_t file_count;
    struct gguf *gguf;
    struct json_doc *config;
    struct json_doc *index;    // weight_map of a sharded model
    uint64_t config_hash;      // of config.json's bytes
    bool shapes_only;
    char digest[17];
};

// ---- files -------------------------------------------------------------------------------------

static enum status read_json(const char *path, struct json_doc **out, uint64_t *hash,
                             struct error *err) {
    struct mapped_file file;
    TRY(mapped_file_open(path, BOUND_MODEL_JSON_BYTES, &file, err));
    *hash = hash_bytes(file.bytes, file.byte_count);
    enum status status = json_parse((const char *)file.bytes, file.byte_count, out, err);
    if (status != STATUS_OK) {
        error_context(err, "'%s'", path);
    }
    mapped_file_close(&file);
    return status == STATUS_INVALID ? STATUS_CORRUPT : status;    // the file's fault
}

static void close_file(struct weights_file *file) {
    safetensors_destroy(file->safetensors);
    mapped_file_close(&file->map);
    memory_free(file->path);
}

static enum status add_file(struct weights *weights, const char *path, struct error *err) {
    if (weights->file_count == BOUND_WEIGHT_FILES) {
        return error_set(err, STATUS_UNSUPPORTED, "more than %u weight files", BOUND_WEIGHT_FILES);
    }
    struct weights_file *file = &weights->files[weights->file_count];
    TRY(mapped_file_open(path, UINT64_MAX, &file->map, err));
    weights->file_count++;
    // Read once, from front to end: the kernel may read ahead.
    if (file->map.mapping != NULL) {
        madvise(file->map.mapping, file->map.byte_count, MADV_SEQUENTIAL);
    }
    file->path = memory_strdup(path);
    return file->path == NULL ? error_set(err, STATUS_EXHAUSTED, "no memory for a path")
                              : STATUS_OK;
}

// ---- containers --------------------------------------------------------------------------------

static enum status open_gguf(struct weights *weights, const char *path, struct error *err) {
    weights->container = WEIGHTS_CONTAINER_GGUF;
    TRY(add_file(weights, path, err));
    const struct mapped_file *map = &weights->files[0].map;
    enum status status = gguf_parse(map->bytes, map->byte_count, &weights->gguf, err);
    if (status != STATUS_OK) {
        error_context(err, "'%s'", path);
        return status;
    }
    uint64_t split_count = 1;
    bool found = false;
    TRY(gguf_get_u64(weights->gguf, "split.count", &split_count, &found, err));
    if (split_count > 1) {
        return error_set(err, STATUS_UNSUPPORTED,
                         "'%s' is one of %llu split files; merge them into one first", path,
                         (unsigned long long)split_count);
    }
    return STATUS_OK;
}

static enum status add_safetensors(struct weights *weights, const char *directory, const char *name,
                                   struct error *err) {
    if (strchr(name, '/') != NULL || strcmp(name, "..") == 0) {
        return error_set(err, STATUS_CORRUPT,
                         "weight file name '%.200s' in the index is no plain file name", name);
    }
    char path[PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s/%s", directory, name);
    if (length < 0 || (size_t)length >= sizeof path) {
        return error_set(err, STATUS_INVALID, "path of '%.200s' is too long", name);
    }
    for (uint32_t i = 0; i < weights->file_count; i++) {
        if (strcmp(weights->files[i].path, path) == 0) {
            return STATUS_OK;
        }
    }
    TRY(add_file(weights, path, err));
    struct weights_file *file = &weights->files[weights->file_count - 1];
    enum status status =
        safetensors_parse(file->map.bytes, file->map.byte_count, &file->safetensors, err);
    if (status != STATUS_OK) {
        error_context(err, "'%s'", path);
    }
    return status;
}

static enum status open_index(struct weights *weights, const char *directory, const char *path,
                              struct error *err) {
    uint64_t hash;    // not kept: the index only says where tensors lie
    TRY(read_json(path, &weights->index, &hash, err));
    const struct json *map = json_get(json_root(weights->index), "weight_map");
    if (json_kind(map) != JSON_KIND_OBJECT) {
        return error_set(err, STATUS_CORRUPT, "'%s' has no object 'weight_map'", path);
    }
    for (void *it = json_iter(map); it != NULL; it = json_iter_next(map, it)) {
        const char *name = json_text(json_iter_value(it), NULL);
        if (name == NULL) {
            return error_set(err, STATUS_CORRUPT, "'%s': the file of '%.200s' is no string", path,
                             json_iter_key(it, NULL));
        }
        TRY(add_safetensors(weights, directory, name, err));
    }
    return STATUS_OK;
}

static enum status open_directory(struct weights *weights, const char *path, struct error *err) {
    weights->container = WEIGHTS_CONTAINER_SAFETENSORS;
    char name[PATH_BYTES];
    snprintf(name, sizeof name, "%.4000s/config.json", path);
    TRY(read_json(name, &weights->config, &weights->config_hash, err));
    snprintf(name, sizeof name, "%.4000s/model.safetensors.index.json", path);
    if (access(name, F_OK) == 0) {
        return open_index(weights, path, name, err);
    }
    snprintf(name, sizeof name, "%.4000s/model.safetensors", path);
    weights->shapes_only = access(name, F_OK) != 0;
    return weights->shapes_only ? STATUS_OK
                                : add_safetensors(weights, path, "model.safetensors", err);
}

static void compute_digest(struct weights *weights) {
    uint64_t digest = weights->config_hash;    // 0 in a GGUF model, which is one file
    for (uint32_t i = 0; i < weights->file_count; i++) {
        const struct mapped_file *file = &weights->files[i].map;
        // Headers lie at the front; the data itself is covered by size and modification time.
        uint64_t head = file->byte_count < 1024 * 1024 ? file->byte_count : 1024 * 1024;
        uint64_t parts[3] = {file->byte_count, file->mtime_ns, hash_bytes(file->bytes, head)};
        digest = hash_u64(digest ^ hash_bytes(parts, sizeof parts));
    }
    snprintf(weights->digest, sizeof weights->digest, "%016llx", (unsigned long long)digest);
}

enum status weights_open(const char *model, struct weights **out, struct error *err) {
    char path[MODEL_PATH_BYTES];
    TRY(model_path_find(model, path, err));
    struct stat info;
    if (stat(path, &info) != 0) {
        return error_set_os(err, STATUS_NOT_FOUND, "model '%s' cannot be opened", path);
    }
    struct weights *weights = memory_zalloc(sizeof *weights);
    if (weights == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory to open a model");
    }
    enum status status =
        S_ISDIR(info.st_mode) ? open_directory(weights, path, err) : open_gguf(weights, path, err);
    if (status != STATUS_OK) {
        weights_close(weights);
        return status;
    }
    compute_digest(weights);
    *out = weights;
    return STATUS_OK;
}

void weights_close(struct weights *weights) {
    if (weights == NULL) {
        return;
    }
    gguf_destroy(weights->gguf);
    json_destroy(weights->config);
    json_destroy(weights->index);
    for (uint32_t i = 0; i < weights->file_count; i++) {
        close_file(&weights->files[i]);
    }
    memory_free(weights);
}

// ---- queries -----------------------------------------------------------------------------------

enum weights_container weights_container(const struct weights *weights) {
    return weights->container;
}

const struct gguf *weights_gguf(const struct weights *weights) {
    return weights->gguf;
}

const struct json *weights_config(const struct weights *weights) {
    return weights->config == NULL ? NULL : json_root(weights->config);
}

const char *weights_digest(const struct weights *weights) {
    return weights->digest;
}

static const struct safetensors_tensor *find_safetensors(const struct weights *weights,
                                                         const char *name) {
    for (uint32_t i = 0; i < weights->file_count; i++) {
        const struct safetensors_tensor *found =
            safetensors_find(weights->files[i].safetensors, name);
        if (found != NULL) {
            return found;
        }
    }
    return NULL;
}

bool weights_shapes_only(const struct weights *weights) {
    return weights->shapes_only;
}

bool weights_has(const struct weights *weights, const char *name) {
    return weights->container == WEIGHTS_CONTAINER_GGUF
               ? gguf_tensor_find(weights->gguf, name) != NULL
               : find_safetensors(weights, name) != NULL;
}

static enum status missing(const char *name, struct error *err) {
    return error_set(err, STATUS_CORRUPT, "tensor '%s' is missing from the model files", name);
}

// A tensor of either container, its dimensions with the largest stride first.
struct found {
    enum dtype dtype;
    uint32_t dim_count;
    uint64_t dims[3];    // of up to three dimensions
    const uint8_t *data;
    uint64_t byte_count;
};

static enum status find_any(const struct weights *weights, const char *name, struct found *out,
                            struct error *err) {
    if (weights->container == WEIGHTS_CONTAINER_GGUF) {
        const struct gguf_tensor *tensor = gguf_tensor_find(weights->gguf, name);
        if (tensor == NULL) {
            return missing(name, err);
        }
        *out = (struct found){.dtype = tensor->dtype,
                              .dim_count = tensor->dim_count,
                              .data = tensor->data,
                              .byte_count = tensor->byte_count};
        for (uint32_t i = 0; i < tensor->dim_count && tensor->dim_count <= 3; i++) {
            out->dims[i] = tensor->ne[tensor->dim_count - 1 - i];
        }
        return STATUS_OK;
    }
    const struct safetensors_tensor *tensor = find_safetensors(weights, name);
    if (tensor == NULL) {
        return missing(name, err);
    }
    if (!tensor->supported) {
        return error_set(err, STATUS_UNSUPPORTED,
                         "tensor '%s' at offset %llu has type %s; F32, F16 and BF16 can be served",
                         name, (unsigned long long)tensor->file_offset, tensor->type_name);
    }
    *out = (struct found){.dtype = tensor->dtype,
                          .dim_count = tensor->dim_count,
                          .data = tensor->data,
                          .byte_count = tensor->byte_count};
    for (uint32_t i = 0; i < tensor->dim_count && tensor->dim_count <= 3; i++) {
        out->dims[i] = tensor->shape[i];
    }
    return STATUS_OK;
}

enum status weights_find(const struct weights *weights, const char *name,
                         struct weights_tensor *out, struct error *err) {
    struct found found;
    TRY(find_any(weights, name, &found, err));
    if (found.dim_count == 0 || found.dim_count > 2) {
        return error_set(err, STATUS_CORRUPT, "tensor '%s' has %u dimensions; 1 or 2 are expected",
                         name, found.dim_count);
    }
    *out = (struct weights_tensor){found.dtype, found.dim_count > 1 ? found.dims[0] : 1,
                                   found.dims[found.dim_count - 1], found.data, found.byte_count};
    return STATUS_OK;
}

enum status weights_find_stack(const struct weights *weights, const char *name,
                               struct weights_tensor *first, uint64_t *count, struct error *err) {
    struct found found;
    TRY(find_any(weights, name, &found, err));
    if (found.dim_count != 3 || found.dims[0] == 0) {
        return error_set(err, STATUS_CORRUPT,
                         "tensor '%s' has %u dimensions; 3 are expected, none of them 0", name,
                         found.dim_count);
    }
    *count = found.dims[0];
    *first = (struct weights_tensor){found.dtype, found.dims[1], found.dims[2], found.data,
                                     found.byte_count / found.dims[0]};
    return STATUS_OK;
}

void weights_release(const struct weights *weights, const struct weights_tensor *tensor) {
    (void)weights;
    mapped_file_give_back(tensor->data, tensor->byte_count);
}
