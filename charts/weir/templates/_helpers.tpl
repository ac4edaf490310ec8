{{- define "weir.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* The beginning of all names. Short enough for the longest suffix. */}}
{{- define "weir.fullname" -}}
{{- $name := include "weir.name" . }}
{{- if .Values.fullnameOverride }}{{ $name = .Values.fullnameOverride }}
{{- else if not (contains $name .Release.Name) }}{{ $name = printf "%s-%s" .Release.Name $name }}
{{- else }}{{ $name = .Release.Name }}
{{- end }}
{{- $name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{/* Texts by name, of several mappings: the first one that has a name wins, so that no name is there twice. An overlay removes a name with
null. */}}
{{- define "weir.texts" -}}
{{- $all := dict }}
{{- range . }}
{{- range $name, $text := . }}
{{- if not (or (kindIs "invalid" $text) (hasKey $all $name)) }}{{ $_ := set $all $name $text }}{{ end }}
{{- end }}
{{- end }}
{{- with $all }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* The labels by which objects find the pods of a component: dict "root" . "component" "trial-store" */}}
{{- define "weir.component" -}}
{{- dict "app.kubernetes.io/name" (include "weir.name" .root) "app.kubernetes.io/instance" .root.Release.Name "app.kubernetes.io/component" .component | toYaml }}
{{- end }}

{{- define "weir.selector" -}}
{{- include "weir.component" (dict "root" . "component" "ratelimit") }}
{{- end }}

{{/* The labels of an object: dict "root" . "component" "ratelimit" "labels" {} */}}
{{- define "weir.labels" -}}
{{- $chart := printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- $own := dict "helm.sh/chart" $chart "app.kubernetes.io/version" .root.Chart.AppVersion "app.kubernetes.io/managed-by" .root.Release.Service }}
{{- $_ := set $own "app.kubernetes.io/part-of" (include "weir.name" .root) }}
{{- include "weir.texts" (list .labels (include "weir.component" . | fromYaml) .root.Values.commonLabels $own) }}
{{- end }}

{{/* The metadata of an object with that suffix of its name, or with another `name`:
dict "root" . "suffix" "-rules" "component" "ratelimit" "labels" {} "annotations" {} */}}
{{- define "weir.metadata" -}}
name: {{ .name | default (printf "%s%v" (include "weir.fullname" .root) .suffix) | toYaml }}
namespace: {{ toYaml .root.Release.Namespace }}
labels:
  {{- include "weir.labels" (dict "root" .root "component" (.component | default "ratelimit") "labels" .labels) | nindent 2 }}
{{- with include "weir.texts" (list .annotations .root.Values.commonAnnotations) }}
annotations:
  {{- . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "weir.image" -}}
{{- with .Values.image }}
{{- with .registry }}{{ . }}/{{ end }}{{ .repository }}
{{- if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "weir.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "weir.fullname" .) }}
{{- else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}

{{- define "weir.rulesConfigMap" -}}
{{- .Values.rules.existingConfigMap | default (printf "%s-rules" (include "weir.fullname" .)) }}
{{- end }}

{{/* The rule files as the data of a ConfigMap. An overlay removes one with null. */}}
{{- define "weir.ruleFiles" -}}
{{- $files := dict }}
{{- range $name, $content := .Values.rules.files }}
{{- if not (kindIs "invalid" $content) }}{{ $_ := set $files $name (ternary $content (toYaml $content) (kindIs "string" $content)) }}{{ end }}
{{- end }}
{{- toYaml $files }}
{{- end }}

{{/* The file of defaults for rules by xDS, as text; empty if there is none. */}}
{{- define "weir.xdsDefaults" -}}
{{- with .Values.rules.xds.defaults }}{{ ternary . (toYaml .) (kindIs "string" .) }}{{ end }}
{{- end }}

{{/* Numbers of values files are floats: 1000000 would become 1e+06. */}}
{{- define "weir.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{- define "weir.redisSecret" -}}
{{- .Values.redis.existingSecret.name | default (printf "%s-redis" (include "weir.fullname" .)) }}
{{- end }}

{{/* The URL that the chart's own Secret holds; empty if there is none. */}}
{{- define "weir.redisUrl" -}}
{{- if .Values.redis.existingSecret.name }}
{{- else if .Values.redis.url }}{{ .Values.redis.url }}
{{- else if .Values.redis.trial.enabled }}{{ include "weir.fullname" . }}-valkey:6379
{{- end }}
{{- end }}

{{/* Not empty if pods share their counts, or may do so by variables of unknown names. */}}
{{- define "weir.sharedStore" -}}
{{- $variables := dict "REDIS_URL" true "MEMCACHE_HOST_PORT" true "MEMCACHE_SRV" true }}
{{- if or .Values.redis.existingSecret.name (include "weir.redisUrl" .) (include "weir.hasMemcached" .) .Values.envFrom }}yes{{ end }}
{{- range $name, $_ := include "weir.givenVariables" . | fromYaml }}{{ if hasKey $variables $name }}yes{{ end }}{{ end }}
{{- end }}

{{- define "weir.hasRedis" -}}
{{- if or .Values.redis.existingSecret.name (include "weir.redisUrl" .) }}yes{{ end }}
{{- end }}

{{- define "weir.hasMemcached" -}}
{{- if or .Values.memcached.servers .Values.memcached.srv }}yes{{ end }}
{{- end }}

{{/* Variables that values give, by name, as text, which is empty for one from a Secret. An overlay removes one of `env` with null. */}}
{{- define "weir.givenVariables" -}}
{{- $given := dict }}
{{- range $name, $value := .Values.env }}
{{- if not (kindIs "invalid" $value) }}{{ $_ := set $given $name (include "weir.text" $value) }}{{ end }}
{{- end }}
{{- range .Values.extraEnv }}{{ $_ := set $given .name (.value | default "" | toString) }}{{ end }}
{{- toYaml $given }}
{{- end }}

{{/* The port of `host`, `host:port`, `[::1]:port` or a URL; nothing for the path of a unix socket: dict "address" "" "default" 6379 */}}
{{- define "weir.port" -}}
{{- $address := regexReplaceAll "^[a-z+]+://" (trim .address) "" }}
{{- if not (hasPrefix "/" $address) }}
{{- $host := regexReplaceAll "^.*@" $address "" | regexFind "^[^/?]*" }}
{{- regexFind ":[0-9]+$" $host | trimPrefix ":" | default (toString .default) }}
{{- end }}
{{- end }}

{{/* The ports of the shared store, with commas between them: those of addresses in values, and `networkPolicy.storePorts`. Those that the
chart cannot know (in a Secret, behind sentinels or SRV records) are the usual ones, unless `storePorts` names them. */}}
{{- define "weir.storePorts" -}}
{{- $ports := list }}
{{- range .Values.networkPolicy.storePorts }}{{ $ports = append $ports (int . | toString) }}{{ end }}
{{- $guess := empty $ports }}
{{- $given := include "weir.givenVariables" . | fromYaml }}
{{- $redis := list }}
{{- $type := get $given "REDIS_TYPE" | default .Values.redis.type | upper }}
{{- if include "weir.hasRedis" . }}{{ $redis = append $redis (dict "url" (include "weir.redisUrl" .) "type" $type) }}{{ end }}
{{- if hasKey $given "REDIS_URL" }}{{ $redis = append $redis (dict "url" $given.REDIS_URL "type" $type) }}{{ end }}
{{- if hasKey $given "REDIS_PERSECOND_URL" }}
{{- $redis = append $redis (dict "url" $given.REDIS_PERSECOND_URL "type" (get $given "REDIS_PERSECOND_TYPE" | default "SINGLE" | upper)) }}
{{- end }}
{{- $memcached := .Values.memcached.servers | default list }}
{{- if $given.MEMCACHE_HOST_PORT }}{{ $memcached = concat $memcached (splitList "," $given.MEMCACHE_HOST_PORT) }}{{ end }}
{{- $unknownMemcached := or .Values.memcached.srv (hasKey $given "MEMCACHE_SRV") (and (hasKey $given "MEMCACHE_HOST_PORT") (not $given.MEMCACHE_HOST_PORT)) }}
{{- if and .Values.envFrom (not (or $redis $memcached $unknownMemcached)) }}{{ $redis = list (dict "url" "" "type" $type) }}{{ end }}
{{- range $redis }}
{{- if eq .type "SENTINEL" }}
{{- if $guess }}{{ $ports = append $ports "6379" }}{{ end }}
{{- if and $guess (not .url) }}{{ $ports = append $ports "26379" }}{{ end }}
{{- range rest (splitList "," .url) }}{{ $ports = append $ports (include "weir.port" (dict "address" . "default" 26379)) }}{{ end }}
{{- else if .url }}
{{- range splitList "," .url }}{{ $ports = append $ports (include "weir.port" (dict "address" . "default" 6379)) }}{{ end }}
{{- else if $guess }}{{ $ports = append $ports "6379" }}
{{- end }}
{{- end }}
{{- range $memcached }}{{ $ports = append $ports (include "weir.port" (dict "address" . "default" 11211)) }}{{ end }}
{{- if and $guess $unknownMemcached }}{{ $ports = append $ports "11211" }}{{ end }}
{{- $ports | compact | uniq | sortAlpha | join "," }}
{{- end }}

{{- define "weir.tlsSecret" -}}
{{- .Values.tls.existingSecret | default (printf "%s-tls" (include "weir.fullname" .)) }}
{{- end }}

{{/* weir's variables, as a mapping. */}}
{{- define "weir.variables" -}}
{{- $v := .Values }}
{{- $all := dict "HOST" $v.host "GRPC_HOST" $v.host "DEBUG_HOST" $v.debugHost "LOG_LEVEL" $v.log.level "LOG_FORMAT" $v.log.format }}
{{- $_ := set $all "GRPC_MAX_CONNECTION_AGE" $v.maxConnectionAge }}
{{- $_ := set $all "GRPC_MAX_CONNECTION_AGE_GRACE" $v.maxConnectionAgeGrace }}
{{- $_ := set $all "WEIR_STOP_DELAY" (printf "%ds" (int64 $v.stop.delaySeconds)) }}
{{- $_ := set $all "WEIR_STOP_TIMEOUT" (printf "%ds" (int64 $v.stop.timeoutSeconds)) }}
{{- if $v.shadowMode }}{{ $_ := set $all "SHADOW_MODE" "true" }}{{ end }}
{{- /* YAML reads a plain on or off as a boolean */}}
{{- if kindIs "bool" $v.json }}{{ $_ := set $all "WEIR_JSON" (ternary "on" "off" $v.json) }}
{{- else if $v.json }}{{ $_ := set $all "WEIR_JSON" $v.json }}{{ end }}
{{- if kindIs "bool" $v.admin.level }}{{ $_ := set $all "WEIR_ADMIN" "off" }}
{{- else if $v.admin.level }}{{ $_ := set $all "WEIR_ADMIN" $v.admin.level }}{{ end }}
{{- if $v.admin.tokenSecret }}{{ $_ := set $all "WEIR_ADMIN_TOKEN_FILE" (printf "/etc/weir/admin/%s" $v.admin.tokenKey) }}{{ end }}
{{- with $v.admin.hosts }}{{ $_ := set $all "WEIR_ADMIN_HOSTS" (join "," .) }}{{ end }}
{{- with $v.record }}{{ $_ := set $all "WEIR_RECORD" . }}{{ end }}
{{- with $v.responseHeaders }}{{ $_ := set $all "WEIR_RESPONSE_HEADERS" . }}{{ end }}
{{- with $v.maxCounters }}{{ $_ := set $all "WEIR_MAX_COUNTERS" (int64 . | toString) }}{{ end }}
{{- with $v.waiting.longest }}{{ $_ := set $all "WEIR_MAX_WAIT" . }}{{ end }}
{{- with $v.waiting.maxWaiters }}{{ $_ := set $all "WEIR_MAX_WAITERS" (int64 . | toString) }}{{ end }}
{{- with $v.waiting.maxWaitersPerKey }}{{ $_ := set $all "WEIR_MAX_WAITERS_PER_KEY" (int64 . | toString) }}{{ end }}
{{- with $v.workers }}{{ $_ := set $all "WEIR_WORKERS" (int64 . | toString) }}{{ end }}
{{- if include "weir.sharedStore" . }}
{{- with $v.coordination.mode }}{{ $_ := set $all "WEIR_COORDINATION" . }}{{ end }}
{{- with $v.coordination.syncInterval }}{{ $_ := set $all "WEIR_SYNC_INTERVAL" . }}{{ end }}
{{- with $v.coordination.decisionBudget }}{{ $_ := set $all "WEIR_DECISION_BUDGET" . }}{{ end }}
{{- with $v.coordination.onStoreFailure }}{{ $_ := set $all "WEIR_ON_STORE_FAILURE" . }}{{ end }}
{{- end }}
{{- if include "weir.hasRedis" . }}
{{- $_ := set $all "REDIS_TYPE" $v.redis.type }}
{{- with $v.redis.keyPrefix }}{{ $_ := set $all "CACHE_KEY_PREFIX" . }}{{ end }}
{{- if $v.redis.tls.enabled }}
{{- $_ := set $all "REDIS_TLS" "true" }}
{{- if $v.redis.tls.caSecret }}{{ $_ := set $all "REDIS_TLS_CACERT" (printf "/etc/weir/redis-ca/%s" $v.redis.tls.caKey) }}{{ end }}
{{- if $v.redis.tls.clientSecret }}
{{- $_ := set $all "REDIS_TLS_CLIENT_CERT" "/etc/weir/redis-client/tls.crt" }}
{{- $_ := set $all "REDIS_TLS_CLIENT_KEY" "/etc/weir/redis-client/tls.key" }}
{{- end }}
{{- end }}
{{- end }}
{{- if include "weir.hasMemcached" . }}
{{- $_ := set $all "BACKEND_TYPE" "memcache" }}
{{- with $v.memcached.servers }}{{ $_ := set $all "MEMCACHE_HOST_PORT" (join "," .) }}{{ end }}
{{- with $v.memcached.srv }}{{ $_ := set $all "MEMCACHE_SRV" . }}{{ end }}
{{- with $v.memcached.srvRefresh }}{{ $_ := set $all "MEMCACHE_SRV_REFRESH" . }}{{ end }}
{{- with $v.memcached.keyPrefix }}{{ $_ := set $all "CACHE_KEY_PREFIX" . }}{{ end }}
{{- if $v.memcached.tls.enabled }}
{{- $_ := set $all "MEMCACHE_TLS" "true" }}
{{- if $v.memcached.tls.caSecret }}{{ $_ := set $all "MEMCACHE_TLS_CACERT" (printf "/etc/weir/memcached-ca/%s" $v.memcached.tls.caKey) }}{{ end }}
{{- if $v.memcached.tls.clientSecret }}
{{- $_ := set $all "MEMCACHE_TLS_CLIENT_CERT" "/etc/weir/memcached-client/tls.crt" }}
{{- $_ := set $all "MEMCACHE_TLS_CLIENT_KEY" "/etc/weir/memcached-client/tls.key" }}
{{- end }}
{{- end }}
{{- end }}
{{- with $v.disk }}
{{- if .enabled }}
{{- $_ := set $all "BACKEND_TYPE" "disk" }}
{{/* not the volume itself: file systems have files of their own there */}}
{{- $_ := set $all "WEIR_DATA_DIR" "/var/lib/weir/data" }}
{{- with .sync }}{{ $_ := set $all "WEIR_DISK_SYNC" . }}{{ end }}
{{- with .onDamage }}{{ $_ := set $all "WEIR_DISK_DAMAGE" . }}{{ end }}
{{- with .maxBytes }}{{ $_ := set $all "WEIR_DISK_MAX_BYTES" (include "weir.text" .) }}{{ end }}
{{- with $v.coordination.syncInterval }}{{ $_ := set $all "WEIR_SYNC_INTERVAL" . }}{{ end }}
{{- with $v.coordination.decisionBudget }}{{ $_ := set $all "WEIR_DECISION_BUDGET" . }}{{ end }}
{{- with $v.coordination.onStoreFailure }}{{ $_ := set $all "WEIR_ON_STORE_FAILURE" . }}{{ end }}
{{- end }}
{{- end }}
{{- with $v.redisProtocol }}
{{- if .enabled }}
{{- $_ := set $all "WEIR_REDIS_PORT" (int64 .port | toString) }}
{{- $_ := set $all "WEIR_REDIS_HOST" $v.host }}
{{- if kindIs "bool" .tls }}{{ $_ := set $all "WEIR_REDIS_TLS" (toString .tls) }}{{ end }}
{{- if .allowReset }}{{ $_ := set $all "WEIR_REDIS_RESET" "true" }}{{ end }}
{{- end }}
{{- end }}
{{- with $v.rules.tables }}{{ $_ := set $all "WEIR_TABLES_DIR" "/etc/weir/tables" }}{{ end }}
{{- with $v.rules.xds }}
{{- if .server }}
{{- $_ := set $all "CONFIG_TYPE" "GRPC_XDS_SOTW" }}
{{- $_ := set $all "CONFIG_GRPC_XDS_SERVER_URL" .server }}
{{- with .nodeId }}{{ $_ := set $all "CONFIG_GRPC_XDS_NODE_ID" . }}{{ end }}
{{- with .algorithm }}{{ $_ := set $all "WEIR_XDS_ALGORITHM" . }}{{ end }}
{{- if .defaults }}{{ $_ := set $all "WEIR_XDS_DEFAULTS" "/etc/weir/xds/defaults.yaml" }}{{ end }}
{{- if .tls.enabled }}
{{- $_ := set $all "CONFIG_GRPC_XDS_SERVER_USE_TLS" "true" }}
{{- if .tls.caSecret }}{{ $_ := set $all "CONFIG_GRPC_XDS_SERVER_TLS_CACERT" (printf "/etc/weir/xds-ca/%s" .tls.caKey) }}{{ end }}
{{- if .tls.clientSecret }}
{{- $_ := set $all "CONFIG_GRPC_XDS_CLIENT_TLS_CERT" "/etc/weir/xds-client/tls.crt" }}
{{- $_ := set $all "CONFIG_GRPC_XDS_CLIENT_TLS_KEY" "/etc/weir/xds-client/tls.key" }}
{{- end }}
{{- with .tls.serverName }}{{ $_ := set $all "CONFIG_GRPC_XDS_SERVER_TLS_SAN" . }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- with $v.tracing }}
{{- if .enabled }}
{{- $_ := set $all "TRACING_ENABLED" "true" }}
{{- $_ := set $all "TRACING_EXPORTER_PROTOCOL" .protocol }}
{{- $_ := set $all "TRACING_SAMPLING_RATE" (.samplingRate | toString) }}
{{- $_ := set $all "TRACING_SERVICE_NAME" (include "weir.fullname" $) }}
{{- $_ := set $all "TRACING_SERVICE_NAMESPACE" $.Release.Namespace }}
{{- $_ := set $all "OTEL_EXPORTER_OTLP_ENDPOINT" .endpoint }}
{{- end }}
{{- end }}
{{- if $v.tls.enabled }}
{{- $_ := set $all "GRPC_SERVER_USE_TLS" "true" }}
{{- $_ := set $all "GRPC_SERVER_TLS_CERT" "/etc/weir/tls/tls.crt" }}
{{- $_ := set $all "GRPC_SERVER_TLS_KEY" "/etc/weir/tls/tls.key" }}
{{- if $v.tls.clients.caSecret }}{{ $_ := set $all "GRPC_CLIENT_TLS_CACERT" (printf "/etc/weir/client-ca/%s" $v.tls.clients.caKey) }}{{ end }}
{{- with $v.tls.clients.san }}{{ $_ := set $all "GRPC_CLIENT_TLS_SAN" . }}{{ end }}
{{- end }}
{{- range $name, $text := include "weir.givenVariables" . | fromYaml }}{{ $_ := set $all $name $text }}{{ end }}
{{- range $v.extraEnv }}{{ $_ := unset $all .name }}{{ end }}
{{- toYaml $all }}
{{- end }}

{{/* The container's list of variables, in a fixed order. */}}
{{- define "weir.env" -}}
{{- range $name, $value := include "weir.variables" . | fromYaml }}
{{- /* weir's default takes the place of a null */}}
{{- if not (kindIs "invalid" $value) }}
- name: {{ $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end }}
{{- $given := include "weir.givenVariables" . | fromYaml }}
{{- if and .Values.tracing.enabled (not (hasKey $given "TRACING_SERVICE_INSTANCE_ID")) }}
- name: TRACING_SERVICE_INSTANCE_ID
  valueFrom:
    fieldRef: { fieldPath: metadata.name }
{{- end }}
{{- if include "weir.hasRedis" . }}
{{- $existing := .Values.redis.existingSecret }}
{{- $keys := dict "REDIS_URL" "url" }}
{{- if $existing.name }}{{ $keys = dict "REDIS_URL" $existing.urlKey "REDIS_AUTH" $existing.authKey "REDIS_SENTINEL_AUTH" $existing.sentinelAuthKey }}{{ end }}
{{- range $name, $key := $keys }}
{{- if and $key (not (hasKey $given $name)) }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef: { name: {{ include "weir.redisSecret" $ | toYaml }}, key: {{ toYaml $key }} }
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.redisProtocol }}
{{- if and .enabled .authSecret (not (hasKey $given "WEIR_REDIS_AUTH")) }}
- name: WEIR_REDIS_AUTH
  valueFrom:
    secretKeyRef: { name: {{ toYaml .authSecret }}, key: {{ toYaml .authKey }} }
{{- end }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Rejects values that do not go together. */}}
{{- define "weir.validate" -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" (include "weir.fullname" .)) }}
{{- fail (printf "%s cannot be the name of a Service, which begins with a letter and has no dots: set fullnameOverride" (include "weir.fullname" .)) }}
{{- end }}
{{- range $where, $labels := dict "commonLabels" .Values.commonLabels "podLabels" .Values.podLabels "service.labels" .Values.service.labels }}
{{- range $name := include "weir.selector" $ | fromYaml | keys | sortAlpha }}
{{- if hasKey ($labels | default dict) $name }}
{{- fail (printf "%s must not have %s, by which Services find their pods: nameOverride changes the name" $where $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- /* null leaves the number to an autoscaler that the chart does not know */}}
{{- $pods := ternary "N" .Values.replicas (kindIs "invalid" .Values.replicas) }}
{{- if .Values.autoscaling.enabled }}{{ $pods = .Values.autoscaling.maxReplicas }}{{ end }}
{{- if and (or (kindIs "string" $pods) (gt (int $pods) 1)) (not (include "weir.sharedStore" .)) (not .Values.allowUnsharedReplicas) }}
{{- fail (printf "%v pods without a shared store would admit up to %v times each limit: set redis.url, redis.existingSecret.name, redis.trial.enabled or memcached.servers, or replicas to 1, or allowUnsharedReplicas to true if that is what you want" $pods $pods) }}
{{- end }}
{{- with .Values.autoscaling }}
{{- $further := ternary .triggers .metrics (eq .method "keda") }}
{{- if and .enabled (lt (int .maxReplicas) (int .minReplicas)) }}
{{- fail "autoscaling.maxReplicas must not be below autoscaling.minReplicas" }}
{{- end }}
{{- if and .enabled (not .targetCPUPercent) (not $further) }}
{{- fail (printf "autoscaling by %s needs autoscaling.targetCPUPercent or autoscaling.%s" .method (ternary "triggers" "metrics" (eq .method "keda"))) }}
{{- end }}
{{- if and .enabled (eq (int .minReplicas) 0) (or (eq .method "hpa") (not $further)) }}
{{- fail "autoscaling.minReplicas 0 needs autoscaling.method keda and autoscaling.triggers: without a pod there is no CPU use to scale by" }}
{{- end }}
{{- end }}
{{- $given := include "weir.givenVariables" . | fromYaml }}
{{- $reasons := dict "PORT" "probes, Service and monitors use port 8080" "GRPC_PORT" "probes, Service and policies use port 8081" }}
{{- $_ := set $reasons "GRPC_UDS" "the Service needs a port" }}
{{- $_ := set $reasons "WEIR_REDIS_PORT" "set redisProtocol.enabled and redisProtocol.port, which the Service has too" }}
{{- $_ := set $reasons "WEIR_STOP_DELAY" "set stop.delaySeconds, which the pod's grace period includes" }}
{{- $_ := set $reasons "WEIR_STOP_TIMEOUT" "set stop.timeoutSeconds, which the pod's grace period includes" }}
{{- range $name, $reason := $reasons }}
{{- if hasKey $given $name }}
{{- fail (printf "env and extraEnv must not set %s: %s" $name $reason) }}
{{- end }}
{{- end }}
{{- $host := $given.GRPC_HOST | default .Values.host }}
{{- if and (eq "RequireDualStack" (toString .Values.service.ipFamilyPolicy)) (not (contains ":" (toString $host))) }}
{{- fail (printf "service.ipFamilyPolicy %s needs host \"::\": nothing would listen on the IPv6 addresses of the Service" .Values.service.ipFamilyPolicy) }}
{{- end }}
{{- $files := include "weir.ruleFiles" . | fromYaml }}
{{- if and .Values.rules.existingConfigMap $files }}
{{- fail "set rules.files or rules.existingConfigMap, not both" }}
{{- end }}
{{- with .Values.rules.xds }}
{{- if and .server (or $.Values.rules.existingConfigMap $files) }}
{{- fail "set rules.xds.server, or rules.files or rules.existingConfigMap, not both" }}
{{- end }}
{{- if and (not .server) (or .nodeId .algorithm .defaults .tls.enabled) }}
{{- fail "rules.xds has no effect without rules.xds.server" }}
{{- end }}
{{- if and (not .tls.enabled) (or .tls.caSecret .tls.clientSecret .tls.serverName) }}
{{- fail "rules.xds.tls has no effect without rules.xds.tls.enabled" }}
{{- end }}
{{- end }}
{{- $stores := 0 }}
{{- if .Values.redis.url }}{{ $stores = add1 $stores }}{{ end }}
{{- if .Values.redis.existingSecret.name }}{{ $stores = add1 $stores }}{{ end }}
{{- if .Values.redis.trial.enabled }}{{ $stores = add1 $stores }}{{ end }}
{{- if gt (int $stores) 1 }}
{{- fail "set one of redis.url, redis.existingSecret.name and redis.trial.enabled" }}
{{- end }}
{{- with .Values.memcached }}
{{- if and .servers .srv }}
{{- fail "set memcached.servers or memcached.srv, not both" }}
{{- end }}
{{- if and (or .servers .srv) (gt (int $stores) 0) }}
{{- fail "set redis or memcached, not both" }}
{{- end }}
{{- if and (not .servers) (not .srv) (or .srvRefresh .keyPrefix .tls.enabled) }}
{{- fail "memcached has no effect without memcached.servers or memcached.srv" }}
{{- end }}
{{- if and (not .tls.enabled) (or .tls.caSecret .tls.clientSecret) }}
{{- fail "memcached.tls has no effect without memcached.tls.enabled" }}
{{- end }}
{{- end }}
{{- with .Values.redis }}
{{- if and (not .tls.enabled) (or .tls.caSecret .tls.clientSecret) }}
{{- fail "redis.tls has no effect without redis.tls.enabled: Redis would be used in plain text" }}
{{- end }}
{{- if and .tls.enabled .trial.enabled }}
{{- fail "redis.tls does not go with redis.trial, which has no TLS" }}
{{- end }}
{{- if and .tls.enabled (not .url) (not .existingSecret.name) }}
{{- fail "redis.tls has no effect without redis.url or redis.existingSecret.name: with a REDIS_URL in env, set REDIS_TLS there too" }}
{{- end }}
{{- end }}
{{- with .Values.tls }}
{{- if and (not .enabled) (or .clients.caSecret .clients.san) }}
{{- fail "tls.clients has no effect without tls.enabled: the gRPC port would serve everybody in plain text" }}
{{- end }}
{{- if and (not .enabled) (or .existingSecret .certManager.enabled) }}
{{- fail "tls.existingSecret and tls.certManager have no effect without tls.enabled: the gRPC port would be in plain text" }}
{{- end }}
{{- if and .clients.san (not .clients.caSecret) }}
{{- fail "tls.clients.san has no effect without tls.clients.caSecret: clients would need no certificate" }}
{{- end }}
{{- end }}
{{- with .Values.disk }}
{{- if and .enabled (include "weir.sharedStore" $) }}
{{- fail "set disk.enabled, or redis or memcached, not both" }}
{{- end }}
{{- if and .enabled $.Values.autoscaling.enabled }}
{{- fail "set disk.enabled or autoscaling.enabled, not both: each pod counts on a volume of its own" }}
{{- end }}
{{- if and (not .enabled) (or .storageClass .sync .onDamage .maxBytes) }}
{{- fail "disk has no effect without disk.enabled" }}
{{- end }}
{{- end }}
{{- with .Values.redisProtocol }}
{{- if and (not .enabled) (or .authSecret .allowReset (kindIs "bool" .tls)) }}
{{- fail "redisProtocol has no effect without redisProtocol.enabled" }}
{{- end }}
{{- if and (eq (toString .tls) "true") (not $.Values.tls.enabled) }}
{{- fail "redisProtocol.tls needs tls.enabled, whose certificate it uses" }}
{{- end }}
{{- if and (has (int .port) (list 6070 8080 8081)) .enabled }}
{{- fail (printf "redisProtocol.port is %d, which is another port of weir" (int .port)) }}
{{- end }}
{{- end }}
{{- if and .Values.networkPolicy.redisFrom (not .Values.redisProtocol.enabled) }}
{{- fail "networkPolicy.redisFrom has no effect without redisProtocol.enabled" }}
{{- end }}
{{- if and .Values.tls.enabled (not .Values.tls.existingSecret) (not .Values.tls.certManager.enabled) }}
{{- fail "tls.enabled needs tls.existingSecret or tls.certManager.enabled" }}
{{- end }}
{{- if and .Values.tls.existingSecret .Values.tls.certManager.enabled }}
{{- fail "set tls.existingSecret or tls.certManager.enabled, not both" }}
{{- end }}
{{- if and .Values.tls.enabled .Values.tls.certManager.enabled (not .Values.tls.certManager.issuerRef.name) }}
{{- fail "tls.certManager.enabled needs tls.certManager.issuerRef.name" }}
{{- end }}
{{- if and .Values.tracing.enabled (not .Values.tracing.endpoint) }}
{{- fail "tracing.enabled needs tracing.endpoint" }}
{{- end }}
{{- if and .Values.metrics.podMonitor.enabled .Values.metrics.serviceMonitor.enabled }}
{{- fail "enable metrics.podMonitor or metrics.serviceMonitor, not both: each metric would be there twice" }}
{{- end }}
{{- with .Values.podDisruptionBudget }}
{{- if and .enabled (ne (toString .maxUnavailable) "") (ne (toString .minAvailable) "") }}
{{- fail "set one of podDisruptionBudget.maxUnavailable and podDisruptionBudget.minAvailable to \"\"" }}
{{- end }}
{{- end }}
{{- end }}
