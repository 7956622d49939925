// SPDX-License-Identifier: Apache-2.0
#include "worker/weights/model_path.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// Where shipped models lie, seen from the program: installed, in a source tree's bin/, in build/.
static const char *const places[] = {"../share/tare/models", "../deploy/models",
                                     "../../../deploy/models"};

enum { NAME_BYTES = 256 };

static const char ENDING[] = "-Instruct";

static bool same_model(const char *wanted, const char *shipped) {
    size_t length = strlen(shipped);
    return strncasecmp(wanted, shipped, length) == 0 &&
           (wanted[length] == '\0' || strcasecmp(wanted + length, ENDING) == 0);
}

static const char *last_part(const char *model) {
    const char *slash = strrchr(model, '/');
    return slash == NULL ? model : slash + 1;
}

static bool is_model(const char *directory, const char *name) {
    char path[MODEL_PATH_BYTES];
    snprintf(path, sizeof path, "%.2000s/%.500s/config.json", directory, name);
    return access(path, F_OK) == 0;
}

// The first shipped name after `name` in order, written over it; false when there is none.
static bool next_model(DIR *dir, const char *directory, char *name) {
    char best[NAME_BYTES] = "";
    rewinddir(dir);
    for (struct dirent *at = readdir(dir); at != NULL; at = readdir(dir)) {
        bool later = strcasecmp(at->d_name, name) > 0;
        bool earlier = best[0] == '\0' || strcasecmp(at->d_name, best) < 0;
        if (at->d_name[0] != '.' && later && earlier && is_model(directory, at->d_name)) {
            snprintf(best, sizeof best, "%s", at->d_name);
        }
    }
    snprintf(name, NAME_BYTES, "%s", best);
    return name[0] != '\0';
}

enum status model_path_find_in(const char *directory, const char *model, char *out,
                               struct error *err) {
    char known[600] = "none";
    size_t used = 0;
    char name[NAME_BYTES] = "";
    DIR *dir = opendir(directory);
    while (dir != NULL && next_model(dir, directory, name)) {
        if (same_model(last_part(model), name)) {
            snprintf(out, MODEL_PATH_BYTES, "%.2000s/%s", directory, name);
            closedir(dir);
            return STATUS_OK;
        }
        size_t length = strlen(name) + 2;
        if (used + length < sizeof known) {
            snprintf(known + used, sizeof known - used, "%s%s", used == 0 ? "" : ", ", name);
            used = strlen(known);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    error_hint(err, "give a GGUF file, a directory with config.json and safetensors, or, to plan, "
                    "one with config.json alone or a shipped name");
    return error_set(err, STATUS_NOT_FOUND, "there is no model '%.200s'; shipped shapes: %s", model,
                     known);
}

enum status model_path_find(const char *model, char *out, struct error *err) {
    if (strlen(model) >= MODEL_PATH_BYTES / 2) {
        return error_set(err, STATUS_INVALID, "the model's name is too long: '%.100s...'", model);
    }
    if (access(model, F_OK) == 0) {
        snprintf(out, MODEL_PATH_BYTES, "%s", model);
        return STATUS_OK;
    }
    char self[MODEL_PATH_BYTES / 2];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length < 0 ? 0 : length] = '\0';
    char *slash = strrchr(self, '/');
    self[slash == NULL ? 0 : slash - self] = '\0';
    char directory[MODEL_PATH_BYTES] = "";
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        snprintf(directory, sizeof directory, "%s/%s", self, places[i]);
        if (access(directory, F_OK) == 0) {
            break;
        }
    }
    return model_path_find_in(directory, model, out, err);
}
